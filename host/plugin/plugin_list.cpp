// Text of `chassis plugins list` and `chassis plugins info`.
#include "host/plugin/plugin_list.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "host/base/device_types.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/plugin/library.hpp"

namespace chassis {
namespace {

void add_line(std::string& out, std::string_view key, const std::string& value) {
  if (!value.empty()) out += fmt::format("  {:<14} {}\n", key, value);
}

// The libraries that it brings; none if the search fails, since a load reports that.
std::vector<BroughtLibrary> brought_or_none(const PluginFile& file) {
  try {
    return needed_libraries(file, loaded_libraries()).brought;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::vector<ListedMember> listed_members(const PluginIndex& index,
                                         const std::function<std::string(const PluginFile&)>& refusal) {
  std::vector<ListedMember> members;
  for (const PluginFile& file : index.files()) {
    const std::string refused = refusal ? refusal(file) : "";
    for (const MemberName& member : file.manifest.members) {
      if (index.find(member.kind, member.id) != &file) continue;
      const std::string own_reason = unusable_reason(file, member);
      members.push_back({member, file.manifest.id, file.manifest.version, std::string(tier_text(file.manifest.tier)),
                         file.path, own_reason.empty() ? refused : own_reason});
    }
  }
  const auto place = [](const ListedMember& member) { return std::tie(member.name.kind, member.name.id); };
  std::sort(members.begin(), members.end(),
            [&](const ListedMember& a, const ListedMember& b) { return place(a) < place(b); });
  return members;
}

std::string plugin_list_text(const PluginIndex& index, const std::vector<ListedMember>& members) {
  std::vector<std::array<std::string, 5>> rows;
  std::string unusable;
  for (const ListedMember& member : members) {
    if (!member.unusable.empty())
      unusable += fmt::format("unusable here: {} in {}: {}\n", member.name.text(), member.path, member.unusable);
    rows.push_back({member.name.kind, member.name.id, member.plugin + " " + member.version, member.tier, member.path});
  }
  std::string out;
  if (rows.empty()) {
    out += "no plugins found\n";
  } else {
    rows.insert(rows.begin(), {"kind", "member", "plugin", "tier", "path"});
    std::array<size_t, 5> widths{};
    for (const auto& row : rows) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
      for (size_t i = 0; i + 1 < row.size(); ++i) out += fmt::format("{:<{}}  ", row[i], widths[i]);
      out += row.back() + "\n";
    }
  }
  out += unusable;
  for (const ShadowedMember& member : index.shadowed()) {
    out += fmt::format("shadowed: {} in {}, by {}\n", member.name.text(), member.path, member.used);
  }
  for (const IgnoredFile& file : index.ignored()) out += fmt::format("ignored: {}\n", file.reason);
  out += "searched:\n";
  for (const PluginFolder& folder : index.folders()) out += fmt::format("  {} ({})\n", folder.path, folder.origin);
  return out;
}

Json plugin_list_json(const PluginIndex& index, const std::vector<ListedMember>& members) {
  Json all = Json::array(), shadowed = Json::array(), ignored = Json::array(), folders = Json::array();
  for (const ListedMember& member : members)
    all.push_back({{"kind", member.name.kind},
                   {"member", member.name.id},
                   {"plugin", member.plugin},
                   {"version", member.version},
                   {"tier", member.tier},
                   {"path", member.path},
                   {"unusable", member.unusable.empty() ? Json() : Json(member.unusable)}});
  for (const ShadowedMember& member : index.shadowed())
    shadowed.push_back(
        {{"kind", member.name.kind}, {"member", member.name.id}, {"path", member.path}, {"by", member.used}});
  for (const IgnoredFile& file : index.ignored()) ignored.push_back({{"path", file.path}, {"reason", file.reason}});
  for (const PluginFolder& folder : index.folders())
    folders.push_back({{"path", folder.path}, {"origin", folder.origin}});
  return {{"members", std::move(all)},
          {"shadowed", std::move(shadowed)},
          {"ignored", std::move(ignored)},
          {"searched", std::move(folders)}};
}

std::string plugin_info_text(const PluginFile& file) {
  const Manifest& m = file.manifest;
  std::string out = fmt::format("{} {}\n", m.id, m.version);
  add_line(out, "path", file.path);
  add_line(out, "hash", "sha256:" + sha256_file(file.path));
  add_line(out, "ABI", fmt::format("{}, needs a host of at least {}", m.abi.text(), m.abi_min_host.text()));
  switch (m.tier) {
    case Tier::kT0:
      add_line(out, "tier", "T0: uses no LibTorch");
      break;
    case Tier::kT1:
      add_line(out, "tier", "T1: LibTorch " + m.torch + " or later");
      break;
    case Tier::kT2:
      add_line(out, "tier", "T2: LibTorch " + m.torch + " and no other");
      break;
  }
  for (const DeviceCode& code : m.device_code)
    if (code.toolkit != 0)
      add_line(out, code.device->title,
               fmt::format("{}, {} {}", code.toolkit, code.device->accelerator->targets_key, code.targets_text()));
  add_line(out, "swappable", m.swappable ? "yes" : "no");
  add_line(out, "license", m.license);
  add_line(out, "git", m.git);
  for (const MemberName& member : m.members) {
    const std::string reason = unusable_reason(file, member);
    add_line(out, "member", member.text() + (reason.empty() ? "" : ": unusable here: " + reason));
  }
  for (const std::string& architecture : m.architectures) add_line(out, "architecture", architecture);
  for (const std::string& name : m.files) add_line(out, "opens", name);
  for (const std::string& service : m.required_services) add_line(out, "requires", service);
  for (const std::string& schema : m.operators) add_line(out, "operator", schema);
  for (const std::string& needed : file.elf.needed) add_line(out, "links", needed);
  for (const BroughtLibrary& library : brought_or_none(file))
    add_line(out, "brings",
             fmt::format("{} ({}) sha256:{}", library.pin_name(m.id), library.path, sha256_file(library.path)));
  add_line(out, "library path", file.elf.runpath);
  return out;
}

Json plugin_info_json(const PluginFile& file) {
  const Manifest& m = file.manifest;
  const auto known = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json members = Json::array(), brought = Json::array();
  for (const BroughtLibrary& library : brought_or_none(file))
    brought.push_back({{"pin", library.pin_name(m.id)},
                       {"path", library.path},
                       {"needed_by", library.needed_by},
                       {"sha256", sha256_file(library.path)}});
  for (const MemberName& member : m.members)
    members.push_back(
        {{"kind", member.kind}, {"member", member.id}, {"unusable", known(unusable_reason(file, member))}});
  Json info = {{"plugin", m.id},
               {"version", m.version},
               {"path", file.path},
               {"sha256", sha256_file(file.path)},
               {"abi", m.abi.text()},
               {"abi_min_host", m.abi_min_host.text()},
               {"tier", tier_text(m.tier)},
               {"libtorch", known(m.torch)}};
  for (const DeviceSpec& device : device_specs()) {
    if (!device.accelerator) continue;
    const auto code = std::ranges::find(m.device_code, &device, &DeviceCode::device);
    const bool is_there = code != m.device_code.end();
    info[std::string(device.accelerator->toolkit_key)] = is_there && code->toolkit != 0 ? Json(code->toolkit) : Json();
    info[std::string(device.accelerator->targets_key)] = is_there ? Json(code->targets) : Json::array();
  }
  const Json rest = {{"swappable", m.swappable},
                     {"license", m.license},
                     {"git", m.git},
                     {"members", std::move(members)},
                     {"architectures", m.architectures},
                     {"opens", m.files},
                     {"requires", m.required_services},
                     {"operators", m.operators},
                     {"links", file.elf.needed},
                     {"brings", std::move(brought)},
                     {"library_path", file.elf.runpath}};
  info.update(rest);
  return info;
}

std::string member_options_text(const MemberName& member, const std::string& doc,
                                const std::vector<OptionSpec>& options) {
  std::string out = fmt::format("{}{}{}\n", member.text(), doc.empty() ? "" : ": ", doc);
  if (options.empty()) out += "  takes no options\n";
  for (const OptionSpec& option : options) {
    out += fmt::format("  {} = {}  # {}", option.name, option.required ? "(required)" : option.default_json,
                       type_text(option.type));
    if (const std::string range = range_text(option); !range.empty()) out += ", " + range;
    if (!option.choices.empty()) out += ": " + choices_text(option.choices);
    out += option.doc.empty() ? "\n" : "\n      " + option.doc + "\n";
  }
  return out;
}

Json member_options_json(const MemberName& member, const std::string& doc, const std::vector<OptionSpec>& options) {
  Json list = Json::array();
  for (const OptionSpec& option : options) list.push_back(option_json(option));
  return {{"kind", member.kind}, {"member", member.id}, {"doc", doc}, {"options", std::move(list)}};
}

}  // namespace chassis
