// Where plugins are looked for, and which members were found there: from manifests alone, nothing is loaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/plugin/manifest.hpp"

namespace chassis {

// A folder, and who named it.
struct PluginFolder {
  std::string path;
  std::string origin;       // "--plugin-path", "run.toml:4:9", "CHASSIS_PLUGIN_PATH", "the user's own", "installed"
  bool must_exist = false;  // a folder that the user wrote down for this run
  SourcePosition where = {};
};

// In order: the command line, the configuration, CHASSIS_PLUGIN_PATH (separated by ':'), the user's own
// ($XDG_DATA_HOME/chassis/plugins, else ~/.local/share/chassis/plugins), and <folder of the
// program>/../lib/chassis/plugins.
std::vector<PluginFolder> plugin_folders(const std::vector<std::string>& command_line,
                                         const std::vector<std::string>& config, const SourcePosition& config_where);
// The file of the running program.
std::string program_file();

// A library in a folder that is no plugin, or a damaged one.
struct IgnoredFile {
  std::string path;
  std::string reason;
  size_t num_before = 0;  // of files(): found before it
};

// A member whose place another library took: one of an earlier folder, or a newer one of the same.
struct ShadowedMember {
  MemberName name;
  std::string path;
  std::string used;
};

class PluginIndex {
 public:
  PluginIndex() = default;
  // Reads the manifests of all *.so in the folders. What it ignores is a counted warning each.
  explicit PluginIndex(std::vector<PluginFolder> folders);
  // One file alone; throws a plugin error if it is no plugin.
  static PluginIndex of_file(const std::string& path);

  // `id` is that of a member, "sdpa", or also says which version, "sdpa@1.2.0". NULL if there is none.
  const PluginFile* find(std::string_view kind, std::string_view id) const;
  // Throws a plugin error that lists what is installed, or names the file that was found first and is damaged.
  const PluginFile& at(std::string_view kind, std::string_view id) const;
  // A library by its own id; NULL if there is none.
  const PluginFile* library(std::string_view id) const;
  // The file of a library or a member by its name ("sdpa", "ops/sdpa"), or by its path; NULL if there is none.
  const PluginFile* named(const std::string& name) const;
  // Throws a plugin error if there is none, or only a damaged one.
  const PluginFile& at_name(const std::string& name) const;
  // The member of kind "model" for a value of config.json "architectures"; throws a plugin error that lists what is
  // supported.
  MemberName model_for_architecture(std::string_view architecture) const;

  // Whether a file lies in the folder of the program itself, "installed", where only who may change the program puts
  // plugins.
  bool is_of_program(const PluginFile& file) const;

  const std::vector<PluginFolder>& folders() const { return folders_; }
  // In the order of the folders, then by file name.
  const std::vector<PluginFile>& files() const { return files_; }
  const std::vector<IgnoredFile>& ignored() const { return ignored_; }
  const std::vector<ShadowedMember>& shadowed() const { return shadowed_; }
  // Those in which a member is installed.
  std::vector<std::string> versions(std::string_view kind, std::string_view id) const;
  // Ids of a kind, sorted.
  std::vector<std::string> ids(std::string_view kind) const;

 private:
  void scan(const PluginFolder& folder);
  void add_members();
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
};

}  // namespace chassis
