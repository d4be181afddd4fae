// Takes a plugin file into the process: checks, private copy, dlopen, entry, negotiation.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/plugin.h"
#include "host/base/error.hpp"
#include "host/plugin/manifest.hpp"
#include "host/plugin/services.hpp"
#include "host/plugin/trust.hpp"

namespace chassis {

// What the host speaks; other values stand for an older or newer host in tests.
struct HostAbi {
  AbiVersion version = {CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR};
  int min_plugin_minor = CHASSIS_ABI_OLDEST_MINOR;  // older plugins are refused
};

struct CudaFacts {
  int major = 0;         // of LibTorch's CUDA, such as 13
  int sm = 0;            // of the device, such as 90
  int driver_major = 0;  // the newest CUDA that the driver speaks
};

// A hash that the user expects: [plugins] pin = { id = "sha256:…" }.
struct PluginPin {
  std::string sha256;  // 64 hex digits
  SourcePosition where;
};
// Throws a config error if the value is no "sha256:" with 64 hex digits.
PluginPin parse_pin(const std::string& id, const std::string& value, const SourcePosition& where);

struct LoadPolicy {
  HostAbi abi;
  std::map<std::string, PluginPin> pins;                // by the id of the library
  std::string only_pinned = {};                         // why no other is loaded: the file that pins; empty: others are
  TrustPolicy trust;                                    // of files that are not pinned
  std::string cache_folder;                             // "" = the user's, see plugin_cache_folder()
  std::function<std::optional<CudaFacts>()> cuda = {};  // asked for CUDA plugins only; empty = no CUDA device in use
};

// $XDG_CACHE_HOME/chassis/plugins, else ~/.cache/chassis/plugins; empty if neither variable is set.
std::string plugin_cache_folder();

// Why this host cannot use a member, in words, whatever it is chosen for; empty if nothing speaks against it.
std::string unusable_reason(const PluginFile& file, const MemberName& member, const HostAbi& abi = {});

// The checks before anything of the file runs; each throws a plugin error that names both sides.
void check_abi(const PluginFile& file, const HostAbi& abi);
void check_tier(const PluginFile& file, const std::string& torch_version);
void check_cuda(const PluginFile& file, const std::optional<CudaFacts>& cuda);
void check_services(const PluginFile& file, const ServiceProvider& services);
// Refuses a file that would bring a second LibTorch or NCCL. `loaded` are the paths of the libraries in this process.
void check_needed(const PluginFile& file, const std::vector<std::string>& loaded);
std::vector<std::string> loaded_libraries();
// Refuses a library path with an empty or relative entry, which is a folder under the working directory.
void check_library_path(const PluginFile& file);
// All of the above, in this order, then the operators.
void check_plugin_file(const PluginFile& file, const LoadPolicy& policy, const ServiceProvider& services);

struct PrivateCopy {
  std::string path;           // <cache>/<sha256>.so
  std::string sha256;         // of the bytes that are there
  bool is_temporary = false;  // in a folder of its own, to be removed once it is mapped
};
// Copies the file under its hash and proves the copy. Falls back to a temporary folder of this run, with a counted
// warning, if the cache can not be used. With `pin`, another hash is refused.
PrivateCopy make_private_copy(const std::string& path, const std::string& cache_folder, const PluginPin* pin,
                              const std::string& who);
void remove_temporary(const PrivateCopy& copy);

using PluginEntry = chassis_status_t* (*)(const chassis_host_t*, const chassis_factory_t**);

// A plugin library in this process. Libraries stay mapped to the end: destroying this frees nothing of them.
class PluginLibrary {
 public:
  // Copies, maps and enters the file; check_plugin_file() is the caller's. The path is that of the original.
  static PluginLibrary load(const PluginFile& file, const LoadPolicy& policy);

  const PluginFile& file() const { return file_; }
  const Manifest& manifest() const { return file_.manifest; }
  const std::string& sha256() const { return sha256_; }
  const std::string& mapped_path() const { return mapped_path_; }
  AbiVersion negotiated() const { return negotiated_; }
  // Was called once already.
  PluginEntry entry() const { return entry_; }
  // As copied out of the plugin's own: what lies beyond its struct_size reads as zero.
  const chassis_factory_t& factory() const { return factory_; }
  const std::vector<chassis_member_t>& members() const { return members_; }
  const chassis_member_t& member(std::string_view kind, std::string_view id) const;

 private:
  PluginLibrary() = default;
  PluginFile file_;
  std::string sha256_;
  std::string mapped_path_;
  AbiVersion negotiated_;
  PluginEntry entry_ = nullptr;
  chassis_factory_t factory_{};
  std::vector<chassis_member_t> members_;
};

// Calls an entry function and proves what it returns; exceptions become plugin errors. Members that the manifest does
// not name, or names otherwise, are refused.
chassis_factory_t enter_plugin(PluginEntry entry, const chassis_host_t* host, const Manifest& manifest);
std::vector<chassis_member_t> read_members(const chassis_factory_t& factory, const Manifest& manifest);

}  // namespace chassis
