// Loads a plugin file into the process: checks, private copy, dlopen, entry, negotiation of the ABI minor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/plugin.h"
#include "host/base/device_types.hpp"
#include "host/base/error.hpp"
#include "host/plugin/libraries.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/services.hpp"
#include "host/plugin/trust.hpp"

namespace chassis {

// The ABI of the host. Tests use other values for an older or newer host.
struct HostAbi {
  AbiVersion version = {CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR};
  int min_plugin_minor = CHASSIS_ABI_OLDEST_MINOR;  // older plugins are refused
};

// A hash that the user expects: [plugins] pin = { id = "sha256:…" }.
struct PluginPin {
  std::string sha256;  // 64 hex digits
  SourcePosition where;
};
// Throws a config error if the value is not "sha256:" and 64 hex digits.
PluginPin parse_pin(const std::string& id, const std::string& value, const SourcePosition& where);

struct LoadPolicy {
  HostAbi abi;
  // Keyed by the plugin's ID, or ID@VERSION, followed by "/" and a file name for a library that the plugin brings.
  std::map<std::string, PluginPin> pins;
  std::string only_pinned = {};                            // the file with the pins, if no other library may be loaded
  TrustPolicy trust;                                       // for files that are not pinned
  std::string cache_folder;                                // "": plugin_cache_folder()
  // Called for plugins with code for devices of this type. Empty or nullopt: no such device is in use.
  std::function<std::optional<DeviceVersions>(const DeviceSpec&)> device_versions = {};

  // NULL if it is not pinned. `library` is the file name of a library that the plugin brings; empty: the plugin itself.
  const PluginPin* pin_of(const Manifest& manifest, const std::string& library = "") const;
};

// Removes copies that no run has used for 30 days. Then removes the least recently used copies until the folder has at
// most max_bytes, but none used within the last hour, which another process may be about to map. A mapped copy stays
// mapped.
void prune_plugin_cache(const std::string& folder, uint64_t max_bytes = uint64_t{1} << 30);

// $XDG_CACHE_HOME/chassis/plugins, else ~/.cache/chassis/plugins; empty if neither variable is set.
std::string plugin_cache_folder();

// Why this host cannot use a member, for messages; empty if it can.
std::string unusable_reason(const PluginFile& file, const MemberName& member, const HostAbi& abi = {});

// The checks before any code of the file runs. Each throws a plugin error with the plugin's and the host's value.
void check_abi(const PluginFile& file, const HostAbi& abi);
void check_tier(const PluginFile& file, const std::string& torch_version);
void check_device_code(const PluginFile& file, const DeviceCode& code, const std::optional<DeviceVersions>& versions);
void check_services(const PluginFile& file, const ServiceProvider& services);
// Refuses a file that would load a second LibTorch or NCCL. `loaded`: paths of the libraries in this process.
void check_needed(const PluginFile& file, const std::vector<std::string>& loaded);
std::vector<std::string> loaded_libraries();
// Refuses a library path (DT_RUNPATH) with an empty or relative entry, since that depends on the working directory.
void check_library_path(const PluginFile& file);
// Checks that the user trusts the file and the libraries that it brings: pins, owners and permissions. Returns those
// libraries. Hashes are compared when the files are copied.
NeededLibraries check_trusted(const PluginFile& file, const LoadPolicy& policy);
// All checks above except check_trusted(), then ServiceProvider::check_operators().
void check_plugin_file(const PluginFile& file, const LoadPolicy& policy, const ServiceProvider& services);

struct PrivateCopy {
  std::string path;           // <cache>/<sha256>.so
  std::string sha256;         // hash of its content
  bool is_temporary = false;  // in a temporary folder, to be removed after mapping
};
// Copies the file to a name made of its hash, and verifies the copy. If the cache cannot be used, copies to a temporary
// folder instead, with a counted warning. Throws a plugin error if the hash differs from `pin`, which may be NULL.
PrivateCopy make_private_copy(const std::string& path, const std::string& cache_folder, const PluginPin* pin,
                              const std::string& label);
void remove_temporary(const PrivateCopy& copy);
// Copies each library that a plugin brings to a folder named by its hash, next to the plugin's copy, and sets its
// `sha256` and `copy`. Returns the file to map before the plugin, so that it gets these copies; empty if it brings no
// library. Throws a plugin error if a hash differs from its pin.
std::string copy_libraries(NeededLibraries& needed, const PrivateCopy& plugin, const PluginFile& file,
                           const LoadPolicy& policy);

using PluginEntry = chassis_status_t* (*)(const chassis_host_t*, const chassis_factory_t**);

// A plugin library in this process. It stays mapped until the process ends, even after this object is destroyed.
class PluginLibrary {
 public:
  // Copies and maps the file and calls its entry. The caller must have called check_plugin_file().
  static PluginLibrary load(const PluginFile& file, const LoadPolicy& policy);

  // The original file, not the private copy.
  const PluginFile& file() const { return file_; }
  const Manifest& manifest() const { return file_.manifest; }
  const std::string& sha256() const { return sha256_; }
  // The libraries that it brings, in the order in which they are needed.
  const std::vector<BroughtLibrary>& libraries() const { return libraries_; }
  // All code that it runs: "sha256:…", and the name and hash of each library that it brings.
  std::string content_text() const;
  const std::string& mapped_path() const { return mapped_path_; }
  AbiVersion negotiated() const { return negotiated_; }
  // load() has called it once.
  PluginEntry entry() const { return entry_; }
  // A copy of the plugin's struct; members beyond its struct_size are zero.
  const chassis_factory_t& factory() const { return factory_; }
  const std::vector<chassis_member_t>& members() const { return members_; }
  const chassis_member_t& member(std::string_view kind, std::string_view id) const;

 private:
  PluginLibrary() = default;
  PluginFile file_;
  std::string sha256_;
  std::vector<BroughtLibrary> libraries_;
  std::string mapped_path_;
  AbiVersion negotiated_;
  PluginEntry entry_ = nullptr;
  chassis_factory_t factory_{};
  std::vector<chassis_member_t> members_;
};

// Calls an entry function and checks what it returns; exceptions become plugin errors.
chassis_factory_t enter_plugin(PluginEntry entry, const chassis_host_t* host, const Manifest& manifest);
// Throws a plugin error if the members differ from those of the manifest.
std::vector<chassis_member_t> read_members(const chassis_factory_t& factory, const Manifest& manifest);

}  // namespace chassis
