// The checks of a plugin file, and loading: mapping a private copy, calling its entry, reading its members.
#include "host/plugin/library.hpp"

#include <dlfcn.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <array>
#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>
#include <filesystem>
#include <mutex>
#include <utility>

#include "host/plugin/call.hpp"
#include "host/plugin/crash_report.hpp"
#include "host/plugin/intercept.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// Libraries of which a process can hold only one version.
constexpr std::array<std::string_view, 6> kSingleLibraries = {
    "libtorch", "libtorch_cpu", "libtorch_python", "libtorch_global_deps", "libc10", "libgomp"};

// The kinds of sdk/include/chassis/kind/.
constexpr std::array<std::string_view, 12> kKinds = {"model",     "ops",  "parallel", "comm",  "optimizer", "format",
                                                     "tokenizer", "rows", "adapter",  "quant", "objective", "sink"};

// "libnccl" for "/x/libnccl.so.2" and for "libnccl-1a2b.so".
std::string_view stem_of(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);
  return path.substr(0, std::min(path.find(".so"), path.find('-')));
}

bool is_single(std::string_view stem) {
  const auto has = [&](const auto& stems) { return std::ranges::find(stems, stem) != stems.end(); };
  return has(kSingleLibraries) || std::ranges::any_of(device_specs(), [&](const DeviceSpec& device) {
           return device.accelerator && has(device.accelerator->torch_libraries);
         });
}

bool is_torch(std::string_view stem) { return stem.starts_with("libtorch") || stem.starts_with("libc10"); }

// The path of `name` in the first folder of DT_RUNPATH that has it; empty if none has.
std::string in_runpath(const PluginFile& file, const std::string& name) {
  for (const std::string& folder :
       library_path_folders(file.elf, fs::path(file.path).parent_path().string(), file.manifest.label())) {
    std::error_code error;
    if (fs::exists(fs::path(folder) / name, error)) return (fs::path(folder) / name).string();
  }
  return "";
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

// A mapped library, the host table that its entry received, and what the entry returned.
struct Mapped {
  Mapped(boost::dll::shared_library library, AbiVersion negotiated)
      : library(std::move(library)), host(negotiated, nullptr) {}
  boost::dll::shared_library library;
  HostTable host;
  PluginEntry entry = nullptr;
  chassis_factory_t factory{};
  std::vector<chassis_member_t> members;
};

// Rationale: process-wide, like the mappings themselves, and never freed. If a library is unloaded while its threads,
// tensors or CUDA modules still exist, the process crashes or computes zeros, and opening the path again may return the
// old code.
struct Arena {
  // A library that a plugin has brought. The dynamic linker uses it for all later plugins that need one of its name.
  struct Brought {
    std::string sha256, by, copy;
  };
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Mapped>> libraries;  // key: hashes and ABI minor
  std::map<std::string, Brought> brought;                    // by name

  static Arena& get() {
    static Arena& arena = *new Arena;
    return arena;
  }
};

// The files that are copied and mapped for a plugin.
struct Copies {
  PrivateCopy plugin;
  std::vector<BroughtLibrary> libraries;
  std::string linking;  // mapped first; empty: none
};

// The dynamic linker's message, with the paths of the user's files instead of the private copies, and a hint.
Error load_failure(const PluginFile& file, const Copies& copies) {
  const char* const said = ::dlerror();
  std::string reason = said != nullptr ? said : "the dynamic linker gives no reason";
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (size_t at = 0; !from.empty() && (at = reason.find(from, at)) != std::string::npos; at += to.size())
      reason.replace(at, from.size(), to);
  };
  rename(copies.plugin.path, file.path);
  rename(copies.linking, file.path);
  for (const BroughtLibrary& library : copies.libraries) rename(library.copy, library.path);
  Error refusal = plugin_error(fmt::format("{} cannot be loaded: {}", file.manifest.label(), reason));
  if (reason.find("undefined symbol") != std::string::npos) {
    refusal.hint("it was not linked against everything it uses; chassis_add_plugin() links with --no-undefined");
  } else if (reason.find("cannot open shared object file") != std::string::npos) {
    refusal.hint(
        "install that library where the dynamic linker finds it, put it into a folder of the plugin's library path "
        "(such as $ORIGIN, the plugin's own), or link it statically");
  } else {
    refusal.hint("the file may be damaged: build or install it again");
  }
  return refusal;
}

// An address in the code of a mapped library; NULL if it is not mapped from this file.
const void* mapped_code_of(const std::string& path) {
  std::pair<const std::string&, const void*> search{path, nullptr};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        auto& [path, found] = *static_cast<std::pair<const std::string&, const void*>*>(out);
        // A temporary copy may have been removed.
        if (info->dlpi_name == nullptr || (info->dlpi_name != path && !same_file(info->dlpi_name, path))) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0)
            // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as integers
            found = reinterpret_cast<const void*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        return found != nullptr ? 1 : 0;
      },
      &search);
  return search.second;
}

// A process holds one library of each name, so plugins that bring different ones of one name cannot both be loaded.
void check_brought(const Arena& arena, const std::vector<BroughtLibrary>& libraries, const std::string& label) {
  for (const BroughtLibrary& library : libraries)
    for (const std::string& name : {library.name, library.soname}) {
      const auto known = arena.brought.find(name);
      if (known == arena.brought.end() || known->second.sha256 == library.sha256) continue;
      throw plugin_error(fmt::format("{} brings {} (sha256:{}), but {} has brought another library of that name "
                                     "(sha256:{}), and a process can hold only one",
                                     label, library.path, library.sha256, known->second.by, known->second.sha256))
          .hint("link one of them statically, or give it another name");
    }
}

// Runs code of a plugin that has no instance yet. An exception that leaves it is an error that names `place`.
template <class F>
auto run_before_instance(const std::string& label, const char* phase, const char* place, F&& code) {
  try {
    const PluginCall call(call_site(label), phase);
    return std::forward<F>(code)();
  } catch (const std::exception& error) {
    throw plugin_error(fmt::format("{} threw an exception out of {}: {}", label, place, error.what()));
  } catch (...) {
    throw plugin_error(fmt::format("{} threw an exception of unknown type out of {}", label, place));
  }
}

// Runs static constructors. False if the file cannot be mapped.
bool map_file(const std::string& path, const std::string& label) {
  return run_before_instance(label, "load", "a static constructor",
                             [&] { return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr; });
}

// Maps the private copies of the libraries that the plugin needs, under the names by which it needs them.
void map_brought(Arena& arena, const PluginFile& file, const Copies& copies) {
  const std::string label = file.manifest.label();
  check_brought(arena, copies.libraries, label);
  if (copies.linking.empty()) return;
  if (!map_file(copies.linking, label)) throw load_failure(file, copies);
  for (const BroughtLibrary& library : copies.libraries) {
    const auto known = arena.brought.find(library.name);
    const void* const code = mapped_code_of(known != arena.brought.end() ? known->second.copy : library.copy);
    if (code == nullptr)
      throw plugin_error(
          fmt::format("{} needs {}: the process has mapped another file than the one that was checked, "
                      "{}",
                      label, library.name, library.path));
    for (const std::string& name : {library.name, library.soname})
      if (!name.empty()) arena.brought.try_emplace(name, Arena::Brought{library.sha256, label, library.copy});
    register_plugin_code(code, label, library.path);
  }
}

const Mapped& map_library(const PluginFile& file, const Copies& copies, AbiVersion negotiated) {
  guard_descriptors();
  Arena& arena = Arena::get();
  const std::lock_guard lock(arena.mutex);
  const PrivateCopy& copy = copies.plugin;
  std::string key = copy.sha256 + "@" + negotiated.text();
  for (const BroughtLibrary& library : copies.libraries) key += "+" + library.sha256;
  std::unique_ptr<Mapped>& slot = arena.libraries[key];
  if (slot) return *slot;

  const std::string label = file.manifest.label();
  map_brought(arena, file, copies);
  // Rationale: not through boost::dll, which cannot keep the library mapped if its entry fails, and which reports an
  // errno that was not set.
  if (!map_file(copy.path, label)) throw load_failure(file, copies);
  boost::dll::shared_library library(copy.path, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  auto mapped = std::make_unique<Mapped>(std::move(library), negotiated);
  if (!mapped->library.has(CHASSIS_ENTRY_SYMBOL)) {
    throw plugin_error(fmt::format("{} ({}) does not export {}", label, file.path, CHASSIS_ENTRY_SYMBOL))
        .hint("build it with chassis_add_plugin()");
  }
  mapped->entry =
      &mapped->library.get<chassis_status_t*(const chassis_host_t*, const chassis_factory_t**)>(CHASSIS_ENTRY_SYMBOL);
  register_plugin_code(reinterpret_cast<const void*>(mapped->entry), label, file.path);
  mapped->factory = enter_plugin(mapped->entry, mapped->host.get(), file.manifest);
  mapped->members = read_members(mapped->factory, file.manifest);
  slot = std::move(mapped);
  return *slot;
}

std::string abi_mismatch(const PluginFile& file, const HostAbi& abi) {
  return fmt::format(
      "{} ({}) was built for ABI {} and needs a host of at least {}; this host has ABI {} and accepts "
      "plugins from {}.{}",
      file.manifest.label(), file.path, file.manifest.abi.text(), file.manifest.abi_min_host.text(), abi.version.text(),
      abi.version.major, abi.min_plugin_minor);
}

}  // namespace

std::string unusable_reason(const PluginFile& file, const MemberName& member, const HostAbi& abi) {
  if (std::find(kKinds.begin(), kKinds.end(), member.kind) == kKinds.end())
    return fmt::format("this host does not use kind '{}'; it uses {}", member.kind, fmt::join(kKinds, ", "));
  try {
    check_abi(file, abi);
  } catch (const Error& refusal) {
    return refusal.message();
  }
  return "";
}

void check_abi(const PluginFile& file, const HostAbi& abi) {
  const Manifest& m = file.manifest;
  if (m.abi.major != abi.version.major) {
    throw plugin_error(
        fmt::format("{}: the majors {} and {} differ", abi_mismatch(file, abi), m.abi.major, abi.version.major))
        .hint("rebuild the plugin with this host's SDK");
  }
  if (m.abi_min_host.minor > abi.version.minor) {
    throw plugin_error(fmt::format("{}: the host is too old", abi_mismatch(file, abi)))
        .hint("update the host, or use an older version of the plugin");
  }
  if (m.abi.minor < abi.min_plugin_minor) {
    throw plugin_error(fmt::format("{}: the plugin is too old", abi_mismatch(file, abi)))
        .hint("rebuild the plugin with this host's SDK");
  }
}

void check_tier(const PluginFile& file, const std::string& torch_version) {
  const Manifest& m = file.manifest;
  if (m.tier == Tier::kT0) return;
  const std::string label = fmt::format("{} ({}) is of tier {}", m.label(), file.path, tier_text(m.tier));
  if (torch_version.empty()) {
    throw plugin_error(fmt::format("{} and needs LibTorch {}; this program runs without LibTorch", label, m.torch));
  }
  if (m.tier == Tier::kT1 && compare_versions(torch_version, m.torch) < 0) {
    throw plugin_error(
        fmt::format("{} and needs LibTorch {} or later; this host has LibTorch {}", label, m.torch, torch_version));
  }
  if (m.tier == Tier::kT2 && compare_versions(torch_version, m.torch) != 0) {
    throw plugin_error(
        fmt::format("{} and was built with LibTorch {}; this host has LibTorch {}", label, m.torch, torch_version))
        .hint("a plugin of tier T2 works only with the LibTorch version that it was built with; rebuild it");
  }
}

void check_device_code(const PluginFile& file, const DeviceCode& code, const std::optional<DeviceVersions>& versions) {
  if (code.toolkit == 0 || !versions) return;
  const Manifest& m = file.manifest;
  const AcceleratorSpec& accelerator = *code.device->accelerator;
  const std::string_view title = code.device->title;
  // A plugin that links the run-time library statically needs only a driver of the same major or a later one.
  const bool shares_runtime = std::ranges::any_of(
      file.elf.needed, [&](const std::string& library) { return library.starts_with(accelerator.runtime_library); });
  if (shares_runtime && code.toolkit != versions->toolkit) {
    throw plugin_error(fmt::format("{} ({}) was built for {} {}; this host's LibTorch uses {} {}", m.label(), file.path,
                                   title, code.toolkit, title, versions->toolkit))
        .hint(fmt::format("build it for that {}, or link its {} run-time library statically", title, title));
  }
  if (!shares_runtime && code.toolkit > versions->driver) {
    throw plugin_error(fmt::format("{} ({}) was built for {} {}; the driver supports {} {}", m.label(), file.path,
                                   title, code.toolkit, title, versions->driver))
        .hint(fmt::format("install a newer driver, or build the plugin for an older {}", title));
  }
  const auto runs = [&](const std::string& target) { return accelerator.runs_on(target, versions->architecture); };
  if (!code.targets.empty() && std::ranges::none_of(code.targets, runs)) {
    throw plugin_error(fmt::format("{} ({}) has kernels for {} {}; the device is {} {}", m.label(), file.path,
                                   accelerator.targets_key, code.targets_text(), accelerator.targets_key,
                                   versions->architecture));
  }
}

void check_services(const PluginFile& file, const ServiceProvider& services) {
  for (const std::string& id : file.manifest.required_services) {
    if (services.offers(id)) continue;
    throw plugin_error(fmt::format("{} ({}) requires the service {}, which this host (ABI {}.{}) does not offer",
                                   file.manifest.label(), file.path, id, CHASSIS_ABI_MAJOR, CHASSIS_ABI_MINOR));
  }
}

void check_needed(const PluginFile& file, const std::vector<std::string>& loaded) {
  const auto refuse = [&](const std::string& needed, const std::string& detail) {
    return plugin_error(fmt::format("{} ({}) needs {}, {}", file.manifest.label(), file.path, needed, detail));
  };
  for (const std::string& needed : file.elf.needed) {
    const std::string_view stem = stem_of(needed);
    if (!is_single(stem)) continue;
    if (is_torch(stem) && file.manifest.tier == Tier::kT0) {
      throw refuse(needed, "but its manifest says tier T0, which uses no LibTorch");
    }
    const std::string name = needed.substr(needed.rfind('/') + 1);
    const std::string own = needed.find('/') != std::string::npos ? needed : in_runpath(file, name);
    const auto there =
        std::find_if(loaded.begin(), loaded.end(), [&](const std::string& path) { return stem_of(path) == stem; });
    if (there != loaded.end()) {
      const std::string there_name = there->substr(there->rfind('/') + 1);
      // The loaded name may be longer: libnccl.so.2 may resolve to libnccl.so.2.28.
      if (!there_name.starts_with(name) && !name.starts_with(there_name)) {
        throw refuse(needed, fmt::format("but this process has {}; it cannot hold both", *there));
      }
      if (!own.empty() && !same_file(own, *there)) {
        throw refuse(needed, fmt::format("and its library path leads to {}, but this process has {}", own, *there));
      }
    } else if (!own.empty() && is_torch(stem)) {
      // Not loaded yet, such as LibTorch's library for GPUs in a run on the CPU: it must be in libtorch_cpu's folder.
      const auto torch = std::find_if(loaded.begin(), loaded.end(),
                                      [](const std::string& path) { return stem_of(path) == "libtorch_cpu"; });
      if (torch != loaded.end() && !same_file(fs::path(own).parent_path(), fs::path(*torch).parent_path())) {
        throw refuse(needed, fmt::format("and its library path leads to {}, but this process has {}", own, *torch));
      }
    }
  }
}

void check_library_path(const PluginFile& file) {
  library_path_folders(file.elf, fs::path(file.path).parent_path().string(),
                       fmt::format("{} ({})", file.manifest.label(), file.path));
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0') {
          static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  return paths;
}

void check_plugin_file(const PluginFile& file, const LoadPolicy& policy, const ServiceProvider& services) {
  check_abi(file, policy.abi);
  check_tier(file, services.torch_version());
  for (const DeviceCode& code : file.manifest.device_code)
    if (code.toolkit != 0 && policy.device_versions)
      check_device_code(file, code, policy.device_versions(*code.device));
  check_library_path(file);
  check_needed(file, loaded_libraries());
  check_services(file, services);
  services.check_operators(file.manifest);
}

chassis_factory_t enter_plugin(PluginEntry entry, const chassis_host_t* host, const Manifest& manifest) {
  const std::string label = manifest.label();
  const chassis_factory_t* factory = nullptr;
  chassis_status_t* status = run_before_instance(label, "entry", "its entry", [&] { return entry(host, &factory); });
  throw_if_failed(status, label + ": its entry failed");
  if (factory == nullptr) throw plugin_error(fmt::format("{} returned no factory from its entry", label));
  const chassis_factory_t known = read_struct(factory, label + ": the factory that its entry returned");
  if (known.member == nullptr || known.create == nullptr) {
    throw plugin_error(
        fmt::format("{} returned a factory without {}", label, known.member == nullptr ? "member()" : "create()"));
  }
  return known;
}

std::vector<chassis_member_t> read_members(const chassis_factory_t& factory, const Manifest& manifest) {
  const std::string label = manifest.label();
  if (factory.num_members != manifest.members.size()) {
    throw plugin_error(fmt::format("{} has {} members, but its manifest names {}", label, factory.num_members,
                                   manifest.members.size()));
  }
  std::vector<chassis_member_t> members;
  for (uint32_t i = 0; i < factory.num_members; ++i) {
    const std::string expected = manifest.members[i].text();
    const chassis_member_t* member = nullptr;
    try {
      member = factory.member(i);
    } catch (...) {
      throw plugin_error(fmt::format("{} threw an exception when asked for member {}", label, i));
    }
    const chassis_member_t known =
        read_struct(member, fmt::format("{}: the description of member {} ({})", label, i, expected));
    const std::string found = fmt::format("{}/{}", view_of(known.kind), view_of(known.id));
    if (found != expected) {
      throw plugin_error(fmt::format("{}: member {} is {}, but its manifest says {}", label, i, found, expected));
    }
    members.push_back(known);
  }
  return members;
}

const PluginPin* LoadPolicy::pin_of(const Manifest& manifest, const std::string& library) const {
  const std::string below = library.empty() ? "" : "/" + library;
  auto pin = pins.find(manifest.id + "@" + manifest.version + below);
  if (pin == pins.end()) pin = pins.find(manifest.id + below);
  return pin == pins.end() ? nullptr : &pin->second;
}

NeededLibraries check_trusted(const PluginFile& file, const LoadPolicy& policy) {
  const std::string label = fmt::format("{} ({})", file.manifest.label(), file.path);
  const auto unlisted = [&](const std::string& which, const char* sort) {
    return plugin_error(
        fmt::format("{} is not listed in {}, and no other {} may be used", which, policy.only_pinned, sort));
  };
  const PluginPin* const pin = policy.pin_of(file.manifest);
  if (!pin && !policy.only_pinned.empty())
    throw unlisted(label, "plugin").hint("use the plugins of that run, or leave out --locked");
  if (!pin) check_trust(file.path, policy.trust);
  // Libraries that earlier plugins brought are not part of the program, so their copies do not count as loaded.
  std::vector<std::string> loaded = loaded_libraries();
  {
    Arena& arena = Arena::get();
    const std::lock_guard lock(arena.mutex);
    for (const auto& [name, brought] : arena.brought) std::erase(loaded, brought.copy);
  }
  NeededLibraries needed = needed_libraries(file, loaded);
  for (const BroughtLibrary& library : needed.brought) {
    const bool is_pinned = policy.pin_of(file.manifest, library.file_name()) != nullptr;
    if (!is_pinned && !policy.only_pinned.empty())
      throw unlisted(fmt::format("{}, which {} needs,", library.path, label), "library")
          .hint(
              "use the libraries of that run; a run without --locked lists them, if an older version of this program "
              "has written the file");
    // A library that is needed by its path is mapped from that path, not from a copy. Even if it is pinned, nobody else
    // may be able to change it after its hash was compared.
    const bool by_path = library.name[0] == '/';
    if (is_pinned && !by_path) continue;
    try {
      check_trust(library.path, policy.trust, by_path ? "" : library.pin_name(file.manifest.id), file.path);
    } catch (const Error& refusal) {
      throw plugin_error(fmt::format("{} needs {}: {}", label, library.name, refusal.message()))
          .hint(refusal.hint_text());
    }
  }
  return needed;
}

std::string PluginLibrary::content_text() const {
  std::string text = "sha256:" + sha256_;
  for (const BroughtLibrary& library : libraries_)
    text += fmt::format(" {} sha256:{}", library.file_name(), library.sha256);
  return text;
}

PluginLibrary PluginLibrary::load(const PluginFile& file, const LoadPolicy& policy) {
  NeededLibraries needed = check_trusted(file, policy);
  const std::string cache = policy.cache_folder.empty() ? plugin_cache_folder() : policy.cache_folder;
  Copies copies;
  copies.plugin = make_private_copy(file.path, cache, policy.pin_of(file.manifest), file.manifest.label());
  const PrivateCopy& copy = copies.plugin;
  PluginLibrary library;
  library.file_ = file;
  library.sha256_ = copy.sha256;
  library.mapped_path_ = copy.path;
  library.negotiated_ = {policy.abi.version.major, std::min(policy.abi.version.minor, file.manifest.abi.minor)};
  try {
    // The checks were made on the original file: the copy that will be mapped must not differ.
    const PluginFile copied = read_plugin_file(copy.path);
    const bool same =
        copied.elf.needed == file.elf.needed && copied.elf.runpath == file.elf.runpath &&
        std::equal(copied.elf.notes.begin(), copied.elf.notes.end(), file.elf.notes.begin(), file.elf.notes.end(),
                   [](const ElfNote& a, const ElfNote& b) { return a.body == b.body; });
    if (!same) {
      throw plugin_error(fmt::format("{} ({}) changed while it was being loaded", file.manifest.label(), file.path))
          .hint("try again");
    }
    copies.linking = copy_libraries(needed, copy, file, policy);
    copies.libraries = library.libraries_ = needed.brought;
    const Mapped& mapped = map_library(file, copies, library.negotiated_);
    library.entry_ = mapped.entry;
    library.factory_ = mapped.factory;
    library.members_ = mapped.members;
  } catch (...) {
    remove_temporary(copy);
    throw;
  }
  remove_temporary(copy);
  return library;
}

const chassis_member_t& PluginLibrary::member(std::string_view kind, std::string_view id) const {
  for (const chassis_member_t& member : members_) {
    if (view_of(member.kind) == kind && view_of(member.id) == id) return member;
  }
  throw internal_error(fmt::format("{} has no member {}/{}", manifest().label(), kind, id));
}

}  // namespace chassis
