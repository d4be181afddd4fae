#include "host/plugin/search.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "host/base/log.hpp"
#include "host/config/suggest.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

void add_folders(std::vector<PluginFolder>& folders, std::string_view list, const std::string& origin) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(':'), list.size());
    if (end != 0) folders.push_back({std::string(list.substr(0, end)), origin, false, {}});
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

}  // namespace

std::string program_file() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

std::vector<PluginFolder> plugin_folders(const std::vector<std::string>& command_line,
                                         const std::vector<std::string>& config, const SourcePosition& config_where) {
  std::vector<PluginFolder> folders;
  for (const std::string& path : command_line) folders.push_back({path, "--plugin-path", true, {}});
  for (const std::string& path : config) folders.push_back({path, config_where.text(), true, config_where});
  if (const char* list = std::getenv("CHASSIS_PLUGIN_PATH")) add_folders(folders, list, "CHASSIS_PLUGIN_PATH");
  const fs::path program = program_file();
  if (!program.empty()) {
    const fs::path installed = program.parent_path().parent_path() / "lib" / "chassis" / "plugins";
    folders.push_back({installed.string(), "installed", false, {}});
  }
  return folders;
}

PluginIndex::PluginIndex(std::vector<PluginFolder> folders) : folders_(std::move(folders)) {
  std::set<fs::path> seen;
  for (const PluginFolder& folder : folders_) {
    std::error_code error;
    const fs::file_status status = fs::status(folder.path, error);
    if (!fs::is_directory(status)) {
      const char* what = fs::exists(status) ? "is a file, expected a folder" : "does not exist";
      if (folder.must_exist) {
        const std::string by = folder.where.file.empty() ? " (from " + folder.origin + ")" : "";
        throw Error(ExitCode::kConfig, folder.where, fmt::format("plugin folder {} {}{}", folder.path, what, by));
      }
      if (folder.origin != "installed") {
        counted_warning("plugin folders ignored",
                        fmt::format("plugin folder {} from {} {}", folder.path, folder.origin, what));
      }
      continue;
    }
    if (seen.insert(fs::canonical(folder.path, error)).second) scan(folder);
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const MemberName& name : files_[i].manifest.members) {
      const PluginFile* first = find(name.kind, name.id);
      if (first == nullptr) {
        members_.push_back({name, i});
        continue;
      }
      shadowed_.push_back({name, files_[i].path, first->path});
      counted_warning("plugins found twice", fmt::format("plugin {} is in {} and in {}; the first is used", name.text(),
                                                         first->path, files_[i].path));
    }
  }
}

void PluginIndex::scan(const PluginFolder& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder.path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->path().extension() == ".so" && entry->is_regular_file(ignored)) paths.push_back(entry->path());
  }
  if (error) {
    throw Error(ExitCode::kPlugin, folder.where,
                fmt::format("plugin folder {} can not be read: {}", folder.path, error.message()));
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    try {
      files_.push_back(read_plugin_file(path.string()));
    } catch (const Error& refusal) {
      ignored_.push_back({path.string(), refusal.message()});
      counted_warning("plugin files ignored", refusal.message() + "; ignored");
    }
  }
}

const PluginFile* PluginIndex::find(std::string_view kind, std::string_view id) const {
  for (const Member& member : members_) {
    if (member.name.kind == kind && member.name.id == id) return &files_[member.file];
  }
  return nullptr;
}

const PluginFile* PluginIndex::library(std::string_view id) const {
  for (const PluginFile& file : files_) {
    if (file.manifest.id == id) return &file;
  }
  return nullptr;
}

const PluginFile& PluginIndex::at(std::string_view kind, std::string_view id) const {
  if (const PluginFile* file = find(kind, id)) return *file;
  const std::vector<std::string> installed = ids(kind);
  if (installed.empty()) {
    throw plugin_error(fmt::format("no plugin of kind '{}' is installed, so '{}' can not be used", kind, id))
        .hint("searched " + searched_text());
  }
  std::string message = fmt::format("unknown plugin '{}' of kind '{}'", id, kind);
  const std::string close = nearest(id, installed);
  if (!close.empty()) message += fmt::format(" (did you mean '{}'?)", close);
  for (const Member& member : members_) {
    if (member.name.id == id) message += fmt::format("; there is '{}' of kind '{}'", id, member.name.kind);
  }
  Error error = plugin_error(message + "; installed: " + fmt::format("{}", fmt::join(installed, ", ")));
  for (const IgnoredFile& file : ignored_) {
    if (fs::path(file.path).stem() == id) error.caused_by(plugin_error(file.reason));
  }
  throw error.hint("searched " + searched_text());
}

MemberName PluginIndex::model_for_architecture(std::string_view architecture) const {
  std::vector<std::string> known;
  for (const Member& member : members_) {
    if (member.name.kind != "model") continue;
    const auto& architectures = files_[member.file].manifest.architectures;
    if (std::find(architectures.begin(), architectures.end(), architecture) != architectures.end()) return member.name;
    known.insert(known.end(), architectures.begin(), architectures.end());
  }
  if (ids("model").empty()) {
    throw plugin_error(fmt::format("no plugin of kind 'model' is installed, so {} can not be used", architecture))
        .hint("searched " + searched_text());
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const std::string close = nearest(architecture, known);
  throw plugin_error(fmt::format("no installed model plugin supports the architecture {}{}; supported: {}",
                                 architecture, close.empty() ? "" : fmt::format(" (did you mean {}?)", close),
                                 fmt::join(known, ", ")))
      .hint("searched " + searched_text());
}

std::vector<std::string> PluginIndex::ids(std::string_view kind) const {
  std::vector<std::string> out;
  for (const Member& member : members_) {
    if (member.name.kind == kind) out.push_back(member.name.id);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string PluginIndex::searched_text() const {
  std::string out;
  for (const PluginFolder& folder : folders_) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", folder.path, folder.origin);
  }
  return out.empty() ? "nowhere: no folder is given" : out;
}

}  // namespace chassis
