// Parsing of the manifest text, and comparison of versions.
#include "host/plugin/manifest.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "chassis/plugin.h"
#include "host/base/device_types.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

constexpr std::string_view kFirstLine = "chassis-manifest=1";
constexpr size_t kMaxMembers = 256;

bool parse_int(std::string_view text, int& out) {
  if (text.empty() || text.size() > 9) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && out >= 0;
}

bool parse_abi(std::string_view text, AbiVersion& out) {
  const size_t dot = text.find('.');
  return dot != std::string_view::npos && parse_int(text.substr(0, dot), out.major) &&
         parse_int(text.substr(dot + 1), out.minor);
}

// Ids are used in file names, messages and TOML keys.
bool is_name(std::string_view text, std::string_view extra) {
  return !text.empty() && text.size() <= 128 && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  extra.find(c) != std::string_view::npos;
         });
}

// plugin = "auto" in the configuration means that the program chooses.
bool is_reserved(std::string_view id) { return id == "auto"; }
constexpr std::string_view kNotReserved = "another id: plugin = \"auto\" means that the program chooses";

bool is_version(std::string_view text) { return is_name(text, ".+-") && text.front() >= '0' && text.front() <= '9'; }

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

void check_text(std::string_view text, const std::string& name) {
  int line = 1;
  for (const char c : text) {
    if (c == '\n')
      ++line;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      throw plugin_error(
          fmt::format("{}: manifest line {}: byte 0x{:02x} is not text", name, line, static_cast<unsigned char>(c)));
    }
  }
}

PluginFile read_plugin(const ElfSource& source, const std::string& name) {
  PluginFile file{name, {}, read_elf(source, name)};
  const auto is_ours = [](const ElfNote& note) { return note.type == CHASSIS_NOTE_TYPE; };
  const auto num_notes = std::count_if(file.elf.notes.begin(), file.elf.notes.end(), is_ours);
  if (num_notes == 0) {
    throw plugin_error(fmt::format("{} is not a Chassis plugin: it has no manifest note", name))
        .hint("a plugin defines one with CHASSIS_MANIFEST, and chassis_add_plugin() keeps it");
  }
  if (num_notes > 1) {
    throw plugin_error(fmt::format("{} has {} different manifest notes, expected 1", name, num_notes));
  }
  file.manifest = parse_manifest(std::find_if(file.elf.notes.begin(), file.elf.notes.end(), is_ours)->body, name);
  return file;
}

// One line of a manifest, key=value.
struct ManifestLine {
  const std::string& file;
  int number;
  std::string_view key, value;

  Error refusal(std::string_view expected) const {
    return plugin_error(
        fmt::format("{}: manifest line {}: {} is '{}', expected {}", file, number, key, value, expected));
  }
};

ManifestLine manifest_line(std::string_view text, int number, const std::string& name) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    throw plugin_error(fmt::format("{}: manifest line {}: '{}' is not key=value", name, number, text.substr(0, 64)));
  }
  return {name, number, text.substr(0, equals), text.substr(equals + 1)};
}

void read_member(const ManifestLine& line, Manifest& m) {
  const size_t slash = line.value.find('/');
  MemberName member;
  if (slash != std::string_view::npos) {
    member = {std::string(line.value.substr(0, slash)), std::string(line.value.substr(slash + 1))};
  }
  if (!is_name(member.kind, "_-") || !is_name(member.id, "_-.")) throw line.refusal("kind/id");
  if (is_reserved(member.id)) throw line.refusal(kNotReserved);
  if (m.members.size() == kMaxMembers) throw line.refusal(fmt::format("at most {} members", kMaxMembers));
  if (std::find(m.members.begin(), m.members.end(), member) != m.members.end()) throw line.refusal("each member once");
  m.members.push_back(std::move(member));
}

void read_service(const ManifestLine& line, Manifest& m) {
  if (!is_name(line.value, "_-./")) throw line.refusal("a service such as chassis.log/1");
  m.required_services.emplace_back(line.value);
}

void read_architecture(const ManifestLine& line, Manifest& m) {
  if (line.value.empty()) throw line.refusal("a name");
  m.architectures.emplace_back(line.value);
}

void read_file_name(const ManifestLine& line, Manifest& m) {
  if (!is_name(line.value, "_-.*")) throw line.refusal("the name of a file, without a folder");
  m.files.emplace_back(line.value);
}

void read_operator(const ManifestLine& line, Manifest& m) {
  if (line.value.find('(') == std::string_view::npos) throw line.refusal("an operator with its schema");
  m.operators.emplace_back(line.value);
}

void read_id(const ManifestLine& line, Manifest& m) {
  if (!is_name(line.value, "_-.")) throw line.refusal("letters, digits, '_', '-' and '.'");
  if (is_reserved(line.value)) throw line.refusal(kNotReserved);
  m.id = line.value;
}

void read_version(const ManifestLine& line, Manifest& m) {
  if (!is_version(line.value)) throw line.refusal("a version such as 0.1.0");
  m.version = line.value;
}

void read_abi(const ManifestLine& line, AbiVersion& out) {
  if (!parse_abi(line.value, out)) throw line.refusal("major.minor");
}

void read_tier(const ManifestLine& line, Manifest& m) {
  for (const Tier tier : {Tier::kT0, Tier::kT1, Tier::kT2}) {
    if (line.value != tier_text(tier)) continue;
    m.tier = tier;
    return;
  }
  throw line.refusal("T0, T1 or T2");
}

void read_torch(const ManifestLine& line, Manifest& m) {
  if (!is_version(line.value)) throw line.refusal("a version such as 2.11.0");
  m.torch = line.value;
}

// The type of devices whose code this key describes; NULL if none.
const DeviceSpec* described_device(std::string_view key) {
  for (const DeviceSpec& device : device_specs())
    if (device.accelerator && (key == device.accelerator->toolkit_key || key == device.accelerator->targets_key))
      return &device;
  return nullptr;
}

void read_device_code(const ManifestLine& line, const DeviceSpec& device, Manifest& m) {
  const AcceleratorSpec& accelerator = *device.accelerator;
  auto code = std::ranges::find(m.device_code, &device, &DeviceCode::device);
  if (code == m.device_code.end()) code = m.device_code.insert(code, DeviceCode{&device});
  if (line.key == accelerator.toolkit_key) {
    if (!parse_int(line.value, code->toolkit) || code->toolkit == 0) throw line.refusal(accelerator.toolkit_form);
    return;
  }
  for (const std::string_view part : split(line.value, ',')) {
    code->targets.push_back(accelerator.read_target(part));
    if (code->targets.back().empty()) throw line.refusal(accelerator.targets_form);
  }
}

bool read_truth(const ManifestLine& line) {
  if (line.value != "0" && line.value != "1") throw line.refusal("0 or 1");
  return line.value == "1";
}

struct ManifestKey {
  std::string_view name;
  void (*read)(const ManifestLine& line, Manifest& m);
};

// Keys that may appear several times.
constexpr ManifestKey kListKeys[] = {{"member", read_member},
                                     {"requires", read_service},
                                     {"architecture", read_architecture},
                                     {"file", read_file_name},
                                     {"op", read_operator}};

constexpr ManifestKey kKeys[] = {
    {"id", read_id},
    {"version", read_version},
    {"abi", [](const ManifestLine& line, Manifest& m) { read_abi(line, m.abi); }},
    {"abi-min-host", [](const ManifestLine& line, Manifest& m) { read_abi(line, m.abi_min_host); }},
    {"tier", read_tier},
    {"torch", read_torch},
    {"swappable", [](const ManifestLine& line, Manifest& m) { m.swappable = read_truth(line); }},
    {"oracle", [](const ManifestLine& line, Manifest& m) { m.oracle = read_truth(line); }},
    {"license", [](const ManifestLine& line, Manifest& m) { m.license = line.value; }},
    {"git", [](const ManifestLine& line, Manifest& m) { m.git = line.value; }}};

// Compares the values of a manifest with each other.
void check_manifest(const Manifest& m, const std::string& name) {
  if (m.members.empty()) throw plugin_error(fmt::format("{}: its manifest lacks 'member'", name));
  if (m.tier != Tier::kT0 && m.torch.empty()) {
    throw plugin_error(fmt::format("{}: its manifest says tier {} but lacks 'torch'", name, tier_text(m.tier)));
  }
  if (m.tier == Tier::kT0 && !m.torch.empty()) {
    throw plugin_error(
        fmt::format("{}: its manifest says tier T0 and torch {}; a T0 plugin uses no LibTorch", name, m.torch));
  }
  if (m.abi_min_host.major != m.abi.major || m.abi_min_host.minor > m.abi.minor) {
    throw plugin_error(fmt::format("{}: its manifest says ABI {} and abi-min-host {}, which must not be later", name,
                                   m.abi.text(), m.abi_min_host.text()));
  }
}

}  // namespace

std::string DeviceCode::targets_text() const { return fmt::format("{}", fmt::join(targets, ", ")); }

std::string AbiVersion::text() const { return fmt::format("{}.{}", major, minor); }

std::string_view tier_text(Tier tier) {
  switch (tier) {
    case Tier::kT0:
      return "T0";
    case Tier::kT1:
      return "T1";
    case Tier::kT2:
      return "T2";
  }
  return "?";
}

const DeviceCode* Manifest::code_for(const DeviceSpec& device) const {
  for (const DeviceCode& code : device_code)
    if (code.device == &device && code.toolkit != 0) return &code;
  return nullptr;
}

bool Manifest::has_device_code() const {
  return std::ranges::any_of(device_code, [](const DeviceCode& code) { return code.toolkit != 0; });
}

std::string Manifest::label() const { return fmt::format("plugin '{}' {}", id, version); }

Manifest parse_manifest(std::string_view text, const std::string& name) {
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  check_text(text, name);
  const std::vector<std::string_view> lines = split(text, '\n');
  if (lines.front() != kFirstLine) {
    throw plugin_error(fmt::format("{}: its manifest begins with '{}', this host reads '{}'", name,
                                   lines.front().substr(0, 64), kFirstLine));
  }
  Manifest m;
  std::set<std::string_view> seen;
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const ManifestLine line = manifest_line(lines[i], static_cast<int>(i) + 1, name);
    const auto is_key = [&](const ManifestKey& known) { return known.name == line.key; };
    if (const auto* list = std::find_if(std::begin(kListKeys), std::end(kListKeys), is_key);
        list != std::end(kListKeys)) {
      list->read(line, m);
      continue;
    }
    if (!seen.insert(line.key).second)
      throw plugin_error(fmt::format("{}: manifest line {}: key {} appears twice", name, line.number, line.key));
    if (const auto* key = std::find_if(std::begin(kKeys), std::end(kKeys), is_key); key != std::end(kKeys))
      key->read(line, m);
    else if (const DeviceSpec* const device = described_device(line.key))
      read_device_code(line, *device, m);
    else
      m.unknown_keys.emplace_back(line.key);
  }
  for (const std::string_view key : {"id", "version", "abi", "abi-min-host", "tier"}) {
    if (!seen.contains(key)) throw plugin_error(fmt::format("{}: its manifest lacks '{}'", name, key));
  }
  check_manifest(m, name);
  return m;
}

PluginFile read_plugin_file(const std::string& path) {
  const File file = File::open_read(path);
  const ElfSource source{file.size(), [&file](uint64_t offset, void* out, uint64_t num_bytes) {
                           file.pread_exact(out, num_bytes, offset);
                           return true;
                         }};
  return read_plugin(source, path);
}

PluginFile read_plugin_bytes(std::string_view bytes, const std::string& name) {
  return read_plugin(elf_source(bytes), name);
}

int compare_versions(std::string_view a, std::string_view b) {
  a = a.substr(0, a.find_first_of("+-"));
  b = b.substr(0, b.find_first_of("+-"));
  while (!a.empty() || !b.empty()) {
    // Compared as text without leading zeros, since numbers may be long. A part that is not a number counts as 0.
    const auto next = [](std::string_view& text) {
      const size_t dot = text.find('.');
      std::string_view number = text.substr(0, dot);
      number = number.substr(0, number.find_first_not_of("0123456789"));
      number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
      text.remove_prefix(dot == std::string_view::npos ? text.size() : dot + 1);
      return number;
    };
    const std::string_view x = next(a), y = next(b);
    if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

}  // namespace chassis
