// Loading of members on first use, checks of their options, and creation of instances.
#include "host/plugin/registry.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/config/plugin_name.hpp"
#include "host/plugin/option_schema.hpp"
#include "host/plugin/status.hpp"

namespace chassis {

PluginRegistry::PluginRegistry(PluginIndex index, LoadPolicy policy, ServiceProvider& services)
    : index_(std::move(index)), policy_(std::move(policy)), services_(services) {
  for (const auto& [id, pin] : policy_.pins) {
    const std::string plugin = id.substr(0, id.find('/'));  // the rest names a library that it brings
    if (index_.library(without_version(plugin)) == nullptr) {
      counted_warning("pins without a plugin", fmt::format("plugin '{}' is pinned but not installed", plugin));
    }
  }
}

std::shared_ptr<const PluginLibrary> PluginRegistry::library(std::string_view kind, std::string_view id) {
  const PluginFile& file = index_.at(kind, id);
  std::shared_ptr<const PluginLibrary>& library = libraries_[file.path];
  if (!library) {
    check_plugin_file(file, policy_, services_);
    const std::string unusable = unusable_reason(file, {std::string(kind), std::string(id)}, policy_.abi);
    if (!unusable.empty()) throw plugin_error(fmt::format("{} ({}): {}", file.manifest.label(), file.path, unusable));
    const ProcessSettings before = read_process_settings();
    library = std::make_shared<const PluginLibrary>(PluginLibrary::load(file, policy_));
    require_process_settings(before, file.manifest.label(), "while it was loaded");
    log::debug("loaded {} from {}, sha256:{}, ABI {}", file.manifest.label(), file.path, library->sha256(),
               library->negotiated().text());
  }
  return library;
}

const std::vector<OptionSpec>& PluginRegistry::option_specs(std::string_view kind, std::string_view id) {
  const std::string name = fmt::format("{}/{}", kind, id);
  const auto known = specs_.find(name);
  if (known != specs_.end()) return known->second;
  const auto library = this->library(kind, id);
  const chassis_member_t& member = library->member(kind, without_version(id));
  return specs_.emplace(name, read_option_specs(member, library->manifest().label())).first->second;
}

std::string PluginRegistry::doc(std::string_view kind, std::string_view id) {
  return printable(view_of(library(kind, id)->member(kind, without_version(id)).doc));
}

std::unique_ptr<Instance> PluginRegistry::create(std::string_view kind, std::string_view id, Json options,
                                                 std::map<std::string, std::string> origins,
                                                 std::vector<std::string> opened_by) {
  const auto library = this->library(kind, id);
  const std::vector<OptionSpec>& specs = option_specs(kind, id);
  const std::string label = library->manifest().label();
  for (const OptionSpec& spec : specs) {
    const auto value = options.find(spec.name);
    if (value == options.end()) {
      throw config_error(fmt::format("{}: option '{}' is not set and has no default", label, spec.name));
    }
    check_option(spec, *value, label);
    origins.try_emplace(spec.name, "default");
  }
  for (const auto& item : options.items()) {
    const bool known =
        std::any_of(specs.begin(), specs.end(), [&](const OptionSpec& s) { return s.name == item.key(); });
    if (!known) throw config_error(fmt::format("{} has no option '{}'", label, item.key()));
  }
  std::vector<std::string>& used = used_[library->file().path];
  const std::string name = fmt::format("{}/{}", kind, without_version(id));
  if (std::find(used.begin(), used.end(), name) == used.end()) used.push_back(name);
  InstanceContext context{library->manifest().id, std::string(kind),  std::string(without_version(id)),
                          &library->manifest(),   std::move(options), std::move(origins),
                          std::move(opened_by)};
  const ProcessSettings before = read_process_settings();
  auto instance = std::make_unique<Instance>(library, std::move(context), services_);
  require_process_settings(before, instance->label(), "while it was created");
  return instance;
}

void PluginRegistry::start(Instance& instance) {
  const ProcessSettings before = read_process_settings();
  instance.prepare();
  instance.activate();
  require_process_settings(before, instance.label(), "while it was started");
}

std::unique_ptr<Instance> PluginRegistry::create_default(std::string_view kind, std::string_view id) {
  return create(kind, id, default_options(option_specs(kind, id), index_.at(kind, id).manifest.label()));
}

std::unique_ptr<Instance> PluginRegistry::open(std::string_view kind, std::string_view id) {
  auto instance = create_default(kind, id);
  start(*instance);
  return instance;
}

std::unique_ptr<Instance> PluginRegistry::open_inner(std::string_view kind, std::string_view id,
                                                     std::string_view options, std::vector<std::string> opened_by) {
  const std::string name = fmt::format("{}/{}", kind, without_version(id));
  if (const auto first = std::find(opened_by.begin(), opened_by.end(), name); first != opened_by.end()) {
    std::string cycle = name + " wraps ";
    for (auto inner = first + 1; inner != opened_by.end(); ++inner) cycle += *inner + ", which wraps ";
    throw config_error(fmt::format("{} would wrap itself: {}{}", name, cycle, name))
        .hint(fmt::format("name another member of kind {}", kind));
  }
  std::vector<OptionSpec> others = option_specs(kind, id);
  std::erase_if(others, [](const OptionSpec& spec) { return spec.required; });  // create() refuses if one is not given
  Json values = default_options(others, index_.at(kind, id).manifest.label());
  std::map<std::string, std::string> origins;
  if (!options.empty()) {
    const std::string where = fmt::format("the options that {} gives to {}", opened_by.back(), name);
    const Json given = parse_json(options, where);
    if (!given.is_object()) throw config_error(where + " are not a JSON object");
    for (const auto& [key, value] : given.items()) {
      values[key] = value;
      origins[key] = where;
    }
  }
  auto instance = create(kind, id, std::move(values), std::move(origins), std::move(opened_by));
  start(*instance);
  return instance;
}

Json PluginRegistry::lock() const {
  Json plugins = Json::array();
  for (const auto& [path, library] : libraries_) {
    if (!library) continue;
    const Manifest& m = library->manifest();
    const auto used = used_.find(path);
    Json listed = {{"id", m.id},
                   {"version", m.version},
                   {"path", path},
                   {"sha256", library->sha256()},
                   {"abi_built", m.abi.text()},
                   {"abi_negotiated", library->negotiated().text()},
                   {"tier", std::string(tier_text(m.tier))},
                   {"torch", m.torch},
                   {"git", m.git},
                   {"members", used == used_.end() ? std::vector<std::string>() : used->second}};
    for (const BroughtLibrary& brought : library->libraries())
      listed["libraries"].push_back(
          {{"name", brought.file_name()}, {"path", brought.path}, {"sha256", brought.sha256}});
    plugins.push_back(std::move(listed));
  }
  return {{"plugins_lock", 1},
          {"host", {{"abi", policy_.abi.version.text()}, {"torch", services_.torch_version()}}},
          {"plugins", std::move(plugins)}};
}

}  // namespace chassis
