// The tests of `plugins check` that need no instance: static/* and load/*.
#include <dlfcn.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>

#include "host/base/device_types.hpp"
#include "host/base/file.hpp"
#include "host/config/keys.hpp"
#include "host/config/schema.hpp"
#include "host/config/suggest.hpp"
#include "host/conformance/check_bench.hpp"

namespace chassis::check {
namespace {

std::vector<ElfSymbol> symbols_of(const std::string& path) {
  const std::string bytes = read_file(path);
  return read_elf_symbols(elf_source(bytes), path);
}

// static: no code of the file runs.

// The host ignores unknown keys, since a later version may define them. This check finds misspelled ones.
void expect_known_keys(const Manifest& manifest) {
  std::vector<std::string> known = {"id",     "version",  "abi",  "abi-min-host", "tier", "torch",
                                    "member", "requires", "file", "architecture", "op"};
  for (const DeviceSpec& device : device_specs())
    if (device.accelerator)
      for (const std::string_view key : {device.accelerator->toolkit_key, device.accelerator->targets_key})
        known.emplace_back(key);
  known.insert(known.end(), {"swappable", "oracle", "license", "git"});
  const AbiVersion host = HostAbi().version;
  if (manifest.abi.major != host.major || manifest.abi.minor > host.minor) return;
  for (const std::string& key : manifest.unknown_keys) {
    const std::string near = nearest(key, known);
    throw plugin_error(fmt::format("its manifest has the unknown key '{}'{}; the keys are {}", key,
                                   near.empty() ? "" : " (did you mean '" + near + "'?)", fmt::join(known, ", ")));
  }
}

void static_manifest(Bench& bench) {
  const PluginFile file = bench.file();
  expect_known_keys(file.manifest);
  for (const MemberName& member : file.manifest.members)
    if (member.kind == "rows" && file.manifest.files.empty())
      throw plugin_error(member.text() +
                         " can never be used: its manifest names no files; add a line such as file=*.parquet");
  check_permissions(file.path);
  for (const BroughtLibrary& library : needed_libraries(file, loaded_libraries()).brought)
    check_permissions(library.path, library.name[0] == '/' ? "" : library.pin_name(file.manifest.id), file.path);
  for (const MemberName& member : file.manifest.members)
    if (const std::string reason = unusable_reason(file, member); !reason.empty())
      throw plugin_error(fmt::format("{} cannot be used: {}", member.text(), reason));
}

void static_exports(Bench& bench) {
  std::vector<std::string> exported;
  for (const ElfSymbol& symbol : symbols_of(bench.path)) {
    if (symbol.defined) exported.push_back(symbol.name);
  }
  if (exported != std::vector<std::string>{CHASSIS_ENTRY_SYMBOL}) {
    if (exported.size() > 10) exported.resize(10);
    throw plugin_error(
        fmt::format("exports [{}], expected exactly {}", fmt::join(exported, ", "), CHASSIS_ENTRY_SYMBOL));
  }
}

void static_unique(Bench& bench) {
  for (const ElfSymbol& symbol : symbols_of(bench.path)) {
    if (symbol.unique) {
      throw plugin_error(
          fmt::format("has the unique symbol {}, which versions in one process would share; compile with "
                      "-fno-gnu-unique",
                      symbol.name));
    }
  }
}

void static_tier(Bench& bench) {
  const Manifest manifest = bench.file().manifest;
  for (const ElfSymbol& symbol : symbols_of(bench.path)) {
    if (symbol.defined) continue;
    const bool is_shim = symbol.name.starts_with("aoti_torch_") || symbol.name.starts_with("torch_");
    bool is_cpp = false;
    for (const std::string_view space : {"2at", "3c10", "5torch", "6caffe2"}) {
      for (const std::string_view prefix : {"_Z", "_ZN", "_ZNK", "_ZTI", "_ZTIN", "_ZTV", "_ZTVN", "_ZTS", "_ZTSN"}) {
        is_cpp = is_cpp || symbol.name.starts_with(std::string(prefix) + std::string(space));
      }
    }
    if ((is_shim && manifest.tier == Tier::kT0) || (is_cpp && manifest.tier != Tier::kT2)) {
      throw plugin_error(fmt::format("declares tier {} but uses {}", tier_text(manifest.tier), symbol.name));
    }
  }
}

// load: the library is mapped and its entry called.

// The configuration table that selects a member of the kind, if that table itself has the key; empty if there is none.
std::string table_with_key(std::string_view kind, std::string_view key) {
  for (const TableSpec& table : host_schema().tables)
    if (table.slot == SlotForm::kOne && table.kind == kind && table.find(key) != nullptr) return table.name;
  return "";
}

void load_entry(Bench& bench) { bench.load(); }

void load_options(Bench& bench) {
  const auto library = bench.load();
  for (const MemberName& member : library->manifest().members)
    for (const OptionSpec& spec : bench.specs(*library, member))
      if (const std::string table = table_with_key(member.kind, spec.name); !table.empty())
        throw plugin_error(
            fmt::format("{} has an option '{}', which is a key of the host in [{}]", member.text(), spec.name, table));
}

void load_side_effects(Bench& bench) {
  const PluginFile file = bench.file();
  check_plugin_file(file, LoadPolicy(), bench.services);
  const size_t threads = num_entries("/proc/self/task"), files = num_entries("/proc/self/fd");
  const PluginLibrary library = PluginLibrary::load(file, LoadPolicy());
  const size_t threads_after = num_entries("/proc/self/task"), files_after = num_entries("/proc/self/fd");
  if (threads_after != threads) {
    throw plugin_error(fmt::format("loading it started threads: {} before, {} after", threads, threads_after));
  }
  if (files_after != files) {
    throw plugin_error(fmt::format("loading it opened files: {} before, {} after", files, files_after));
  }
}

void load_twice(Bench& bench) {
  const auto library = bench.load();
  const HostTable host(library->negotiated(), nullptr);
  const chassis_factory_t again = enter_plugin(library->entry(), host.get(), library->manifest());
  read_members(again, library->manifest());
  // The same file at another path is a second, independent mapping.
  const PluginFile file = bench.file();
  std::string folder = std::filesystem::temp_directory_path() / "chassis-check-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) throw Skip{"no temporary folder"};
  try {
    const std::string copy = folder + "/other.so";
    std::filesystem::copy_file(bench.path, copy);
    void* handle = ::dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw plugin_error(fmt::format("a second copy cannot be loaded: {}", ::dlerror()));
    const auto entry = reinterpret_cast<PluginEntry>(::dlsym(handle, CHASSIS_ENTRY_SYMBOL));
    read_members(enter_plugin(entry, host.get(), library->manifest()), library->manifest());
  } catch (...) {
    std::filesystem::remove_all(folder);
    throw;
  }
  std::filesystem::remove_all(folder);
}

void load_unknown_id(Bench& bench) {
  const auto library = bench.load();
  const MemberName member = library->manifest().members.front();
  for (const MemberName& wrong : {MemberName{member.kind, member.id + "x"}, MemberName{"no_such_kind", member.id}}) {
    InstanceContext context = bench.context(*library, member);
    const auto services = bench.services.attach(context);
    const HostTable host(library->negotiated(), services.get());
    chassis_instance_t untouched{};
    chassis_instance_t* instance = &untouched;
    const PluginCall call(call_site(library->manifest().label()), "create");
    chassis_status_t* status = library->factory().create(host.get(), str_of(wrong.kind), str_of(wrong.id), &instance);
    const bool refused = status != nullptr;
    status_release(status);
    if (!refused) {
      if (instance != nullptr && instance != &untouched) instance->destroy(instance);
      throw plugin_error(fmt::format("creates {}, which is not one of its members", wrong.text()));
    }
    if (instance != &untouched) throw plugin_error(fmt::format("refuses {} but changes *out", wrong.text()));
  }
}

constexpr Test kFileTests[] = {
    {"static/manifest", "", static_manifest},
    {"static/exports", "", static_exports},
    {"static/unique", "", static_unique},
    {"static/tier", "", static_tier},
    {"load/entry", "", load_entry},
    {"load/options", "load/entry", load_options},
    {"load/side-effects", "load/entry", load_side_effects},
    {"load/twice", "load/entry", load_twice},
    {"load/unknown-id", "load/options", load_unknown_id},
};

}  // namespace

std::span<const Test> file_tests() { return kFileTests; }

}  // namespace chassis::check
