// Matches one name of the pattern after the other, in the folders that match the names before it.
#include "host/data/glob.hpp"

#include <fnmatch.h>

#include <filesystem>
#include <set>
#include <utility>

#include "host/base/file.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

using PathNames = std::vector<std::string>;

std::string path_in(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

// Pairs of a folder and the index of the name that is searched there. With two "**", a folder can be reached in many
// ways.
using Visited = std::set<std::pair<std::string, size_t>>;

void expand(const std::string& folder, const PathNames& names, size_t index, Visited& visited,
            std::set<std::string>& found) {
  if (!visited.emplace(folder, index).second) return;
  const std::string& name = names[index];
  const bool last = index + 1 == names.size();
  if (!is_glob(name)) {
    const std::string path = path_in(folder, name);
    const PathKind kind = path_kind(path);
    if (last && kind != PathKind::kAbsent) found.insert(path);
    if (!last && kind == PathKind::kDirectory) expand(path, names, index + 1, visited, found);
    return;
  }
  if (name == "**" && !last) expand(folder, names, index + 1, visited, found);
  for (const DirectoryEntry& entry : list_directory(folder.empty() ? "." : folder)) {
    const std::string path = path_in(folder, entry.name);
    if (name == "**") {
      if (entry.name.starts_with('.')) continue;
      if (last) found.insert(path);
      if (entry.kind == PathKind::kDirectory) expand(path, names, index, visited, found);
    } else if (::fnmatch(name.c_str(), entry.name.c_str(), FNM_PERIOD) == 0) {
      if (last)
        found.insert(path);
      else if (path_kind(path) == PathKind::kDirectory)
        expand(path, names, index + 1, visited, found);
    }
  }
}

// The names of the pattern, and the folder where they begin: "/" or "".
std::pair<std::string, PathNames> names_of(const std::string& pattern) {
  const fs::path path(pattern);
  PathNames names;
  for (const fs::path& name : path.relative_path()) {
    // "**/**" matches what "**" matches, and each further one would multiply the work.
    const bool repeats = name == "**" && !names.empty() && names.back() == "**";
    if (!name.empty() && !repeats) names.push_back(name.string());
  }
  return {path.root_path().string(), std::move(names)};
}

}  // namespace

bool is_glob(std::string_view path) { return path.find_first_of("*?[") != std::string_view::npos; }

std::vector<std::string> glob(const std::string& pattern) {
  const auto [folder, names] = names_of(pattern);
  Visited visited;
  std::set<std::string> found;
  if (!names.empty()) expand(folder, names, 0, visited, found);
  return {found.begin(), found.end()};
}

std::string glob_folder(const std::string& pattern) {
  auto [folder, names] = names_of(pattern);
  for (const std::string& name : names) {
    if (is_glob(name)) break;
    folder = path_in(folder, name);
  }
  return folder.empty() ? "." : folder;
}

}  // namespace chassis
