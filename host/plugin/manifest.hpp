// The manifest of a plugin file: the text of its ELF note, see chassis/plugin.h. Read without loading the library.
// Nothing in the file is trusted; every refusal is a plugin error that names the file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/base/device_types.hpp"
#include "host/plugin/elf.hpp"

namespace chassis {

struct AbiVersion {
  int major = 0;
  int minor = 0;

  std::string text() const;  // "0.1"
  friend bool operator==(const AbiVersion&, const AbiVersion&) = default;
};

enum class Tier { kT0, kT1, kT2 };
std::string_view tier_text(Tier tier);  // "T0"

struct MemberName {
  std::string kind;  // "ops"
  std::string id;    // "sdpa"

  std::string text() const { return kind + "/" + id; }
  friend bool operator==(const MemberName&, const MemberName&) = default;
};

// The code for one type of accelerators, as the manifest describes it.
struct DeviceCode {
  const DeviceSpec* device;  // never NULL, and has an accelerator
  int toolkit = 0;           // major version of the toolkit that built it; 0: no code
  std::vector<std::string> targets = {};

  std::string targets_text() const;  // "80, 90a, ptx90"
};

struct Manifest {
  std::string id;
  std::string version;  // semver
  AbiVersion abi;
  AbiVersion abi_min_host;
  Tier tier = Tier::kT0;
  std::string torch;  // T1: the oldest LibTorch; T2: the exact version; empty for T0
  std::vector<MemberName> members;
  std::vector<std::string> required_services;
  std::vector<std::string> architectures;
  std::vector<std::string> files;  // patterns: "tokenizer.json" of a model directory, "*.parquet" of rows
  std::vector<std::string> unknown_keys;
  std::vector<std::string> operators;  // "aten::mm(Tensor self, Tensor mat2) -> Tensor"
  std::vector<DeviceCode> device_code;  // at most one for each type
  bool swappable = false;
  bool oracle = false;
  std::string license;
  std::string git;

  // NULL if it has no code for devices of this type.
  const DeviceCode* code_for(const DeviceSpec& device) const;
  bool has_device_code() const;
  // "plugin 'sdpa' 0.1.0", for the beginning of messages.
  std::string label() const;
};

// Throws a plugin error that begins with `name`, the file.
Manifest parse_manifest(std::string_view text, const std::string& name);

// A plugin file that was read but not loaded.
struct PluginFile {
  std::string path;
  Manifest manifest;
  ElfFacts elf;
};

// Throws a plugin error if the file is not a plugin for this machine.
PluginFile read_plugin_file(const std::string& path);
// The same from memory; for tests and the fuzzer.
PluginFile read_plugin_bytes(std::string_view bytes, const std::string& name);

// Dotted numbers: negative if a < b, 0 if equal, positive if a > b. Text after a '+' or '-' is ignored.
int compare_versions(std::string_view a, std::string_view b);

}  // namespace chassis
