// The libraries that a plugin brings: those that it needs, directly or indirectly, and that are neither part of the
// program nor in a system folder. They run as the plugin does, so the rules for trust, pins and private copies apply to
// them too. Libraries that a plugin opens itself, with dlopen(), are not seen.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/plugin/manifest.hpp"

namespace chassis {

struct BroughtLibrary {
  std::string name;         // as in DT_NEEDED: "libhelper.so", or an absolute path
  std::string path;         // the file that the dynamic linker would take
  std::string needed_by;    // path of the plugin or library that needs it first
  std::string soname;       // empty: it has none
  std::string sha256 = {};  // set when the plugin is loaded
  std::string copy = {};    // path of its private copy; that of the file itself if `name` is a path

  // The key in [plugins] pin: "mine/libhelper.so".
  std::string pin_name(const std::string& plugin) const { return plugin + "/" + file_name(); }
  std::string file_name() const { return name.substr(name.rfind('/') + 1); }
};

struct NeededLibraries {
  std::vector<BroughtLibrary> brought;
  std::vector<std::string> others;   // needed names that are neither loaded nor brought: the dynamic linker finds them
  std::vector<std::string> folders;  // system folders in which library paths find some of `others`
};

// Throws a plugin error if the file is not a shared object for this machine, or is damaged.
ElfFacts read_library(const std::string& path);

// Searches as the dynamic linker does: DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH, with $ORIGIN as the folder of the file
// that needs the library. `loaded`: paths of the libraries in this process. Throws a plugin error if a library that is
// found depends on the working directory, or is damaged.
NeededLibraries needed_libraries(const PluginFile& file, const std::vector<std::string>& loaded);

// The folders of a library path, with $ORIGIN replaced by `origin`. Throws a plugin error that begins with `what` if an
// entry is empty, relative, or has another variable of the dynamic linker.
std::vector<std::string> library_path_folders(const ElfFacts& elf, const std::string& origin, const std::string& what);

// The bytes of a library without code that needs `names` and searches `folders` for them first. Folders without a
// leading '/' are relative to its own folder. Rationale: once a library is mapped under a name, all later libraries get
// it for that name. Only in this way do plugins get private copies, wherever their own library path leads.
std::string linking_library(const std::vector<std::string>& names, const std::vector<std::string>& folders);

}  // namespace chassis
