// Parsing of the manifest text, and comparison of versions.
#include "host/plugin/manifest.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "chassis/plugin.h"
#include "host/base/device_types.hpp"
#include "host/base/error.hpp"
#include "host/base/file.hpp"

namespace chassis {
namespace {

constexpr std::string_view kFirstLine = "chassis-manifest=1";
constexpr size_t kMaxMembers = 256;

Error bad_line(const std::string& name, int line, std::string_view key, std::string_view value,
               std::string_view expected) {
  return plugin_error(fmt::format("{}: manifest line {}: {} is '{}', expected {}", name, line, key, value, expected));
}

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

// The type of devices whose code this key describes; NULL if none.
const DeviceSpec* described_device(std::string_view key) {
  for (const DeviceSpec& device : device_specs())
    if (device.accelerator && (key == device.accelerator->toolkit_key || key == device.accelerator->targets_key))
      return &device;
  return nullptr;
}

// Reads a key of `device`. Returns what the value must be; empty if it is valid.
std::string_view read_device_code(const DeviceSpec& device, std::string_view key, std::string_view value, Manifest& m) {
  auto code = std::ranges::find(m.device_code, &device, &DeviceCode::device);
  if (code == m.device_code.end()) code = m.device_code.insert(code, DeviceCode{&device});
  if (key == device.accelerator->toolkit_key)
    return parse_int(value, code->toolkit) && code->toolkit != 0 ? "" : device.accelerator->toolkit_form;
  for (const std::string_view part : split(value, ',')) {
    code->targets.push_back(device.accelerator->read_target(part));
    if (code->targets.back().empty()) return device.accelerator->targets_form;
  }
  return "";
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
    const std::string_view line = lines[i];
    const int number = static_cast<int>(i) + 1;
    if (line.empty()) continue;
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) {
      throw plugin_error(fmt::format("{}: manifest line {}: '{}' is not key=value", name, number, line.substr(0, 64)));
    }
    const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
    const auto refuse = [&](std::string_view expected) { return bad_line(name, number, key, value, expected); };
    if (key == "member") {
      const size_t slash = value.find('/');
      MemberName member;
      if (slash != std::string_view::npos) {
        member = {std::string(value.substr(0, slash)), std::string(value.substr(slash + 1))};
      }
      if (!is_name(member.kind, "_-") || !is_name(member.id, "_-.")) throw refuse("kind/id");
      if (is_reserved(member.id)) throw refuse(kNotReserved);
      if (m.members.size() == kMaxMembers) throw refuse(fmt::format("at most {} members", kMaxMembers));
      if (std::find(m.members.begin(), m.members.end(), member) != m.members.end()) throw refuse("each member once");
      m.members.push_back(std::move(member));
      continue;
    }
    if (key == "requires") {
      if (!is_name(value, "_-./")) throw refuse("a service such as chassis.log/1");
      m.required_services.emplace_back(value);
      continue;
    }
    if (key == "architecture") {
      if (value.empty()) throw refuse("a name");
      m.architectures.emplace_back(value);
      continue;
    }
    if (key == "file") {
      if (!is_name(value, "_-.*")) throw refuse("the name of a file, without a folder");
      m.files.emplace_back(value);
      continue;
    }
    if (key == "op") {
      if (value.find('(') == std::string_view::npos) throw refuse("an operator with its schema");
      m.operators.emplace_back(value);
      continue;
    }
    if (!seen.insert(key).second)
      throw plugin_error(fmt::format("{}: manifest line {}: key {} appears twice", name, number, key));
    if (key == "id") {
      if (!is_name(value, "_-.")) throw refuse("letters, digits, '_', '-' and '.'");
      if (is_reserved(value)) throw refuse(kNotReserved);
      m.id = value;
    } else if (key == "version") {
      if (!is_version(value)) throw refuse("a version such as 0.1.0");
      m.version = value;
    } else if (key == "abi") {
      if (!parse_abi(value, m.abi)) throw refuse("major.minor");
    } else if (key == "abi-min-host") {
      if (!parse_abi(value, m.abi_min_host)) throw refuse("major.minor");
    } else if (key == "tier") {
      if (value == "T0")
        m.tier = Tier::kT0;
      else if (value == "T1")
        m.tier = Tier::kT1;
      else if (value == "T2")
        m.tier = Tier::kT2;
      else
        throw refuse("T0, T1 or T2");
    } else if (key == "torch") {
      if (!is_version(value)) throw refuse("a version such as 2.11.0");
      m.torch = value;
    } else if (const DeviceSpec* const device = described_device(key)) {
      if (const std::string_view form = read_device_code(*device, key, value, m); !form.empty()) throw refuse(form);
    } else if (key == "swappable") {
      if (value != "0" && value != "1") throw refuse("0 or 1");
      m.swappable = value == "1";
    } else if (key == "oracle") {
      if (value != "0" && value != "1") throw refuse("0 or 1");
      m.oracle = value == "1";
    } else if (key == "license") {
      m.license = value;
    } else if (key == "git") {
      m.git = value;
    } else {
      m.unknown_keys.emplace_back(key);
    }
  }
  for (const std::string_view key : {"id", "version", "abi", "abi-min-host", "tier"}) {
    if (!seen.contains(key)) throw plugin_error(fmt::format("{}: its manifest lacks '{}'", name, key));
  }
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
