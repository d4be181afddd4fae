// Finds plugins in folders and indexes their members. Reads manifests only; loads no library.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/plugin/manifest.hpp"

namespace chassis {

// A folder to search, and where its path comes from.
struct PluginFolder {
  std::string path;
  std::string origin;       // "--plugin-path", "run.toml:4:9", "CHASSIS_PLUGIN_PATH", "the user's own", "installed"
  bool must_exist = false;  // named by the user for this run
  SourcePosition where = {};
};

// In order: the command line, the configuration, CHASSIS_PLUGIN_PATH (separated by ':'), the user's own
// folder ($XDG_DATA_HOME/chassis/plugins, else ~/.local/share/chassis/plugins), and <folder of the
// program>/../lib/chassis/plugins.
std::vector<PluginFolder> plugin_folders(const std::vector<std::string>& command_line,
                                         const std::vector<std::string>& config, const SourcePosition& config_where);
// The file of the running program.
std::string program_file();

// A file *.so in a plugin folder that is not a plugin, or is damaged.
struct IgnoredFile {
  std::string path;
  std::string reason;
  size_t num_files_before = 0;  // number of files() found before it
};

// A member that is not used, because an earlier folder, or a newer library in the same folder, has one of that name.
struct ShadowedMember {
  MemberName name;
  std::string path;
  std::string used;  // path of the library that is used instead
};

class PluginIndex {
 public:
  PluginIndex() = default;
  // Reads the manifests of all *.so in the folders. Throws if a folder that must exist cannot be read. Each other
  // folder or file that is ignored is a counted warning.
  explicit PluginIndex(std::vector<PluginFolder> folders);
  // An index of one file; throws a plugin error if it is not a plugin.
  static PluginIndex of_file(const std::string& path);

  // `id` is a member's id, "sdpa", or an id with a version, "sdpa@1.2.0". NULL if there is none.
  const PluginFile* find(std::string_view kind, std::string_view id) const;
  // Throws a plugin error that lists the installed members, or names the damaged file if that was found first. If `id`
  // has no version and other files have the member too, counts a warning for each of them, once per name.
  const PluginFile& at(std::string_view kind, std::string_view id) const;
  // A library by its id, with or without a version; NULL if there is none.
  const PluginFile* library(std::string_view id) const;
  // A file by its path or by the name of its library or of a member ("sdpa", "ops/sdpa"); NULL if there is none.
  const PluginFile* named(const std::string& name) const;
  // The same; throws a plugin error if there is none, or only a damaged one.
  const PluginFile& at_name(const std::string& name) const;
  // The member of kind "model" for a value of config.json "architectures"; throws a plugin error that lists the
  // supported architectures.
  MemberName model_for_architecture(std::string_view architecture) const;

  // Whether a file lies in the program's own plugin folder, "installed". Only users who may change the program can put
  // files there.
  bool is_installed_with_program(const std::string& path) const;

  const std::vector<PluginFolder>& folders() const { return folders_; }
  // In the order of the folders, then by file name.
  const std::vector<PluginFile>& files() const { return files_; }
  const std::vector<IgnoredFile>& ignored() const { return ignored_; }
  const std::vector<ShadowedMember>& shadowed() const { return shadowed_; }
  // The versions in which a member is installed.
  std::vector<std::string> versions(std::string_view kind, std::string_view id) const;
  // Ids of a kind, sorted.
  std::vector<std::string> ids(std::string_view kind) const;

 private:
  void scan(const PluginFolder& folder);
  void add_members();
  void warn_of_others(std::string_view kind, std::string_view id) const;
  std::string searched_text() const;

  std::vector<PluginFolder> folders_;
  std::vector<PluginFile> files_;
  std::vector<IgnoredFile> ignored_;
  std::vector<ShadowedMember> shadowed_;
  struct Member {
    MemberName name;
    size_t file;
  };
  std::vector<Member> members_;
  mutable std::set<std::string> warned_;  // names whose other files were reported
};

}  // namespace chassis
