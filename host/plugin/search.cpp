// Search of the plugin folders, and lookup of members by kind, id and version.
#include "host/plugin/search.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/config/foreign.hpp"
#include "host/config/plugin_name.hpp"
#include "host/config/suggest.hpp"
#include "host/plugin/libraries.hpp"

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

// Empty if neither XDG_DATA_HOME nor HOME is an absolute path.
std::string user_folder() {
  for (const auto& [variable, below] :
       {std::pair{"XDG_DATA_HOME", "/chassis/plugins"}, {"HOME", "/.local/share/chassis/plugins"}})
    if (const char* folder = std::getenv(variable); folder != nullptr && folder[0] == '/')
      return std::string(folder) + below;
  return "";
}

// Relative to the running program; empty if its path is unknown.
fs::path installed_folder() {
  const fs::path program = program_file();
  return program.empty() ? fs::path() : program.parent_path().parent_path() / "lib" / "chassis" / "plugins";
}

bool has_same_members(const PluginFile& a, const PluginFile& b) {
  return std::ranges::is_permutation(
      a.manifest.members, b.manifest.members,
      [](const MemberName& x, const MemberName& y) { return x.kind == y.kind && x.id == y.id; });
}

// NULL if there is none.
template <class Matches>
const PluginFile* first_file(const std::vector<PluginFile>& files, const Matches& matches) {
  const auto found = std::ranges::find_if(files, matches);
  return found == files.end() ? nullptr : &*found;
}

// Whether the file has the version in `name`, if there is one. No file has the empty version of "sdpa@".
bool has_version_of(const PluginFile& file, std::string_view name) {
  return name == without_version(name) || file.manifest.version == version_in(name);
}

// Libraries beside the plugins that need them, directly or indirectly, are not meant to be plugins.
void leave_out_needed(std::vector<IgnoredFile>& files, std::set<std::string> needed) {
  for (bool again = true; again;) {
    again = std::erase_if(files, [&](const IgnoredFile& file) {
              if (!needed.contains(fs::path(file.path).filename().string())) return false;
              try {
                const std::vector<std::string> further = read_library(file.path).needed;
                needed.insert(further.begin(), further.end());
              } catch (const Error&) {
                return false;  // damaged
              }
              return true;
            }) > 0;
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
  if (const std::string own = user_folder(); !own.empty()) folders.push_back({own, "the user's own", false, {}});
  if (const fs::path installed = installed_folder(); !installed.empty())
    folders.push_back({installed.string(), "installed", false, {}});
  return folders;
}

PluginIndex::PluginIndex(std::vector<PluginFolder> folders) : folders_(std::move(folders)) {
  std::set<fs::path> seen;
  for (const PluginFolder& folder : folders_) {
    PathKind kind = PathKind::kAbsent;
    try {
      kind = path_kind(folder.path);
    } catch (const Error& error) {
      if (folder.must_exist) throw Error(ExitCode::kConfig, folder.where, "plugin folder " + error.message());
      counted_warning("plugin folders ignored",
                      fmt::format("plugin folder from {}: {}", folder.origin, error.message()));
      continue;
    }
    if (kind != PathKind::kDirectory) {
      const char* what = kind == PathKind::kAbsent ? "does not exist" : "is a file, expected a folder";
      if (folder.must_exist) {
        const std::string by = folder.where.file.empty() ? " (from " + folder.origin + ")" : "";
        throw Error(ExitCode::kConfig, folder.where, fmt::format("plugin folder {} {}{}", folder.path, what, by));
      }
      const bool may_be_absent = folder.origin == "installed" || folder.origin == "the user's own";
      if (!may_be_absent || kind != PathKind::kAbsent) {
        counted_warning("plugin folders ignored",
                        fmt::format("plugin folder {} from {} {}", folder.path, folder.origin, what));
      }
      continue;
    }
    std::error_code error;
    if (seen.insert(fs::canonical(folder.path, error)).second) scan(folder);
  }
  add_members();
}

PluginIndex PluginIndex::of_file(const std::string& path) {
  PluginIndex index;
  index.files_.push_back(read_plugin_file(path));
  index.add_members();
  return index;
}

// A member of an earlier folder wins; within one folder, the newest version of a library.
void PluginIndex::add_members() {
  const auto is_newer = [](const PluginFile& a, const PluginFile& b) {
    return fs::path(a.path).parent_path() == fs::path(b.path).parent_path() && a.manifest.id == b.manifest.id &&
           compare_versions(a.manifest.version, b.manifest.version) > 0;
  };
  for (size_t i = 0; i < files_.size(); ++i) {
    const PluginFile& file = files_[i];
    if (const PluginFile* first = library(file.manifest.id); first != &file && !has_same_members(*first, file))
      counted_warning("libraries with the same id",
                      fmt::format("{} and {} both have the id '{}', with different members", first->path, file.path,
                                  file.manifest.id));
    for (const MemberName& name : file.manifest.members) {
      const auto known = std::find_if(members_.begin(), members_.end(), [&](const Member& member) {
        return member.name.kind == name.kind && member.name.id == name.id;
      });
      if (known == members_.end()) {
        members_.push_back({name, i});
        continue;
      }
      const size_t before = known->file;
      if (is_newer(file, files_[before])) known->file = i;
      shadowed_.push_back({name, files_[known->file == i ? before : i].path, ""});
    }
  }
  for (ShadowedMember& other : shadowed_)  // now it is known which file each name means
    other.used = find(other.name.kind, other.name.id)->path;
}

// A name with a version needs no warning: it says which file is meant.
void PluginIndex::warn_of_others(std::string_view kind, std::string_view id) const {
  const std::string name = fmt::format("{}/{}", kind, id);
  if (id != without_version(id) || !warned_.insert(name).second) return;
  for (const ShadowedMember& other : shadowed_) {
    if (other.name.kind != kind || other.name.id != id) continue;
    const PluginFile &used = *named(other.used), &hidden = *named(other.path);
    const std::string advice =
        used.manifest.version == hidden.manifest.version
            ? "the first is used; remove one of them"
            : fmt::format("without a version, as in '{}@{}', the first is used", id, hidden.manifest.version);
    counted_warning("plugins found twice",
                    fmt::format("plugin {} is in {} (version {}) and in {} (version {}); {}", name, used.path,
                                used.manifest.version, hidden.path, hidden.manifest.version, advice));
  }
}

void PluginIndex::scan(const PluginFolder& folder) {
  std::vector<DirectoryEntry> entries;
  try {
    entries = list_directory(folder.path);
  } catch (const Error& error) {
    if (folder.must_exist) throw Error(ExitCode::kPlugin, folder.where, error.message());
    counted_warning("plugin folders ignored", fmt::format("plugin folder from {}: {}", folder.origin, error.message()));
    return;
  }
  std::vector<IgnoredFile> refused;
  std::set<std::string> needed;
  for (const DirectoryEntry& entry : entries) {
    if (fs::path(entry.name).extension() != ".so" || entry.kind == PathKind::kDirectory) continue;
    const std::string path = (fs::path(folder.path) / entry.name).string();
    try {
      files_.push_back(read_plugin_file(path));
      needed.insert(files_.back().elf.needed.begin(), files_.back().elf.needed.end());
    } catch (const Error& refusal) {
      refused.push_back({path, refusal.message(), files_.size()});
    }
  }
  leave_out_needed(refused, std::move(needed));
  for (IgnoredFile& file : refused) {
    counted_warning("plugin files ignored", file.reason + "; ignored");
    ignored_.push_back(std::move(file));
  }
}

const PluginFile* PluginIndex::find(std::string_view kind, std::string_view id) const {
  const std::string_view name = without_version(id);
  for (const Member& member : members_) {
    if (member.name.kind != kind || member.name.id != name) continue;
    if (has_version_of(files_[member.file], id)) return &files_[member.file];
    for (const ShadowedMember& other : shadowed_) {
      if (other.name.kind != kind || other.name.id != name) continue;
      if (const PluginFile* file = named(other.path); has_version_of(*file, id)) return file;
    }
  }
  return nullptr;
}

std::vector<std::string> PluginIndex::versions(std::string_view kind, std::string_view id) const {
  std::vector<std::string> out;
  for (const PluginFile& file : files_)
    for (const MemberName& member : file.manifest.members)
      if (member.kind == kind && member.id == id) out.push_back(file.manifest.version);
  return out;
}

bool PluginIndex::is_installed_with_program(const std::string& path) const {
  std::error_code error;
  return fs::equivalent(fs::path(path).parent_path(), installed_folder(), error) && !error;
}

const PluginFile* PluginIndex::library(std::string_view id) const {
  return first_file(files_, [&](const PluginFile& file) {
    return file.manifest.id == without_version(id) && has_version_of(file, id);
  });
}

const PluginFile& PluginIndex::at(std::string_view kind, std::string_view id) const {
  const PluginFile* const found = find(kind, id);
  // A damaged file of that name is probably the one that the user wants, unless an intact one was found before it.
  for (const IgnoredFile& damaged : ignored_) {
    const bool is_later = found != nullptr && found < files_.data() + damaged.num_files_before;
    if (fs::path(damaged.path).stem() != without_version(id) || is_later) continue;
    const std::string before = found != nullptr ? ", which comes before " + found->path + "," : "";
    throw plugin_error(fmt::format("plugin '{}' of kind '{}': {}{} cannot be used", id, kind, damaged.path, before))
        .caused_by(plugin_error(damaged.reason))
        .hint("build it again, or remove it");
  }
  if (found != nullptr) {
    warn_of_others(kind, id);
    return *found;
  }
  if (id.ends_with('@'))
    throw plugin_error(fmt::format("plugin '{}' of kind '{}' has no version after '@'", id, kind))
        .hint("write one, as in 'sdpa@1.2.0', or leave out '@'");
  if (const auto known = versions(kind, without_version(id)); !known.empty())
    throw plugin_error(fmt::format("plugin '{}' of kind '{}' is not installed in version {}; there is {}",
                                   without_version(id), kind, version_in(id), fmt::join(known, ", ")))
        .hint("searched " + searched_text());
  const std::vector<std::string> installed = ids(kind);
  if (installed.empty()) {
    throw plugin_error(fmt::format("no plugin of kind '{}' is installed, so '{}' cannot be used", kind, id))
        .hint("searched " + searched_text());
  }
  std::string message = fmt::format("unknown plugin '{}' of kind '{}'", id, kind);
  // The name of a library or of a member of another kind is not a misspelling: report it instead of a suggestion.
  std::string elsewhere;
  for (const Member& member : members_) {
    if (member.name.id == id)
      elsewhere += fmt::format("; there is '{}' of kind '{}'", id, member.name.kind);
    else if (member.name.kind == kind && files_[member.file].manifest.id == id)
      elsewhere += fmt::format("; library '{}' offers it as '{}'", id, member.name.id);
  }
  const std::string_view ours = kind == "optimizer" ? foreign_optimizer(without_version(id)) : "";
  const std::string_view keys = kind == "objective" ? foreign_objective(without_version(id)) : "";
  const std::string close = elsewhere.empty() ? nearest(id, installed) : "";
  if (!keys.empty())
    message += fmt::format(" (here: {})", keys);
  else if (!ours.empty())
    message += fmt::format(" (here: '{}')", ours);
  else if (!close.empty())
    message += fmt::format(" (did you mean '{}'?)", close);
  throw plugin_error(message + elsewhere + "; installed: " + fmt::format("{}", fmt::join(installed, ", ")))
      .hint("searched " + searched_text());
}

const PluginFile* PluginIndex::named(const std::string& name) const {
  if (const auto* file = first_file(files_, [&](const PluginFile& f) { return f.path == name; })) return file;
  if (const PluginFile* file = library(name)) return file;
  const std::string_view plain = without_version(name);
  return first_file(files_, [&](const PluginFile& file) {
    return has_version_of(file, name) && std::ranges::any_of(file.manifest.members, [&](const MemberName& member) {
             return member.id == plain || member.text() == plain;
           });
  });
}

const PluginFile& PluginIndex::at_name(const std::string& name) const {
  if (const PluginFile* file = named(name)) return *file;
  for (const IgnoredFile& ignored : ignored_)
    if (fs::path(ignored.path).stem() == name)
      throw plugin_error(fmt::format("plugin '{}': {} cannot be used", name, ignored.path))
          .caused_by(plugin_error(ignored.reason))
          .hint("build it again, or remove it");
  std::vector<std::string> known;
  for (const PluginFile& file : files_) {
    known.push_back(file.manifest.id);
    for (const MemberName& member : file.manifest.members) known.push_back(member.id);
  }
  const std::string close = nearest(name, known);
  throw plugin_error(fmt::format("no plugin '{}' is installed, and there is no such file{}", name,
                                 close.empty() ? "" : fmt::format(" (did you mean '{}'?)", close)))
      .hint("see `chassis plugins list`");
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
    throw plugin_error(fmt::format("no plugin of kind 'model' is installed, so {} cannot be used", architecture))
        .hint("searched " + searched_text());
  }
  // Left out to shorten the list: every family has such a head.
  std::erase_if(known, [](const std::string& name) { return name.ends_with("ForSequenceClassification"); });
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  // No name is suggested: users do not type it, and a similar one, such as Mistral's for Mixtral, is another model.
  throw plugin_error(fmt::format("no installed model plugin supports the architecture {}; supported: {}", architecture,
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
  return out.empty() ? "nowhere: there is no plugin folder" : out;
}

}  // namespace chassis
