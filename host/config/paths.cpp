// Expands "~" and "hub:", and names the folders that cannot hold files of a run.
#include "host/config/paths.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace chassis {

namespace fs = std::filesystem;

std::optional<std::string> expand_home(std::string& path) {
  if (!path.starts_with('~')) return std::nullopt;
  if (path.size() > 1 && path[1] != '/') {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return std::nullopt;
    return "only \"~/\" is expanded, to your own home folder: write the whole path";
  }
  const char* const home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "\"~\" means HOME, which is not set: write the whole path";
  path.replace(0, 1, home);
  return std::nullopt;
}

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folder in which huggingface_hub keeps snapshots, by the variables that it reads; empty if none is set.
std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string folder = variable(name); !folder.empty()) return folder;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface/hub";
}

// True for words of letters, digits, '.', '_' and '-' with slashes between them, if no word is only dots.
bool is_hub_name(std::string_view text, size_t max_slashes) {
  size_t num_slashes = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (word.find_first_not_of('.') == word.npos) return false;
    for (const char c : word)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '-') return false;
    num_slashes += end < text.size();
    begin = end + 1;
  }
  return num_slashes <= max_slashes;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
  return line;
}

}  // namespace

std::optional<std::string> expand_hub(std::string& path) {
  constexpr std::string_view kPrefix = "hub:";
  if (!path.starts_with(kPrefix)) return std::nullopt;
  const std::string given = path.substr(kPrefix.size());
  const size_t at = given.find('@');
  const std::string name = given.substr(0, at), revision = at == given.npos ? "main" : given.substr(at + 1);
  if (!is_hub_name(name, 1) || !is_hub_name(revision, 8)) return "expected hub:Org/Name or hub:Org/Name@revision";
  const std::string cache = hub_cache();
  if (cache.empty()) return "HF_HUB_CACHE, HF_HOME and HOME are not set, so there is no Hugging Face cache";
  std::string folder = "models--" + name;
  if (const size_t slash = folder.find('/'); slash != folder.npos) folder.replace(slash, 1, "--");
  const fs::path model = fs::path(cache) / folder;
  const std::string command = "hf download " + name + (at == given.npos ? "" : " --revision " + revision);
  std::error_code ignored;
  if (!fs::is_directory(model, ignored))
    return name + " is not in the Hugging Face cache " + cache + "; get it with: " + command;
  std::string hash = first_line(model / "refs" / revision);
  if (hash.empty() && fs::is_directory(model / "snapshots" / revision, ignored)) hash = revision;
  if (hash.empty())
    return "the Hugging Face cache " + cache + " has " + name + ", but not its revision '" + revision +
           "'; get it with: " + command;
  const fs::path snapshot = model / "snapshots" / hash;
  if (!is_hub_name(hash, 0) || !fs::is_directory(snapshot, ignored))
    return "revision '" + revision + "' of " + name + " is " + hash + ", but there is no folder " + snapshot.string() +
           "; get it with: " + command;
  path = snapshot.string();
  return std::nullopt;
}

std::string hub_hint(const std::string& path) {
  std::error_code ignored;
  if (path.find('/') == path.npos || !is_hub_name(path, 1) || fs::exists(path, ignored) ||
      fs::exists(fs::path(path).parent_path(), ignored))
    return "";
  std::string snapshot = "hub:" + path;
  const std::string found = "\"" + snapshot + "\" names that model in the local Hugging Face cache";
  const std::optional<std::string> problem = expand_hub(snapshot);
  return problem ? found + "; " + *problem : found;
}

std::string why_not_writable(const std::string& folder) {
  std::error_code error;
  const fs::path whole = fs::weakly_canonical(fs::absolute(folder, error), error);
  if (error) return "";  // creating it will report why
  if (whole == whole.root_path()) return "it is the root of the file system";
  const std::string path = whole.string() + "/";
  for (const char* system : {"/dev/", "/proc/", "/sys/"})
    if (path.starts_with(system) && !path.starts_with("/dev/shm/"))
      return std::string(system) + " belongs to the system";
  return "";
}

}  // namespace chassis
