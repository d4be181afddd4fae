// Turns [plugins] into the policy by which libraries are loaded, and creates instances.
#include "host/session/run_plugins.hpp"

#include <map>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/json.hpp"

namespace chassis {
namespace {

PluginPin read_pin(const Setting<TomlValue>& pins, const std::string& id, const Json& pin) {
  const SourcePosition where = pins.where_of(id);
  if (!pin.is_string()) throw Error(ExitCode::kConfig, where, "plugins.pin." + id + " must be a string \"sha256:…\"");
  return parse_pin(id, pin.get<std::string>(), where);
}

// Allows only the plugins that an earlier run of the same directory used.
void pin_to_lock(const Settings& settings, LoadPolicy& policy) {
  const std::string path = *settings.run.output_dir + "/plugins.lock";
  if (path_kind(path) == PathKind::kAbsent)
    throw config_error(settings.plugins.locked, "plugins.locked = true, but there is no '" + path + "'")
        .hint("the first run without --locked writes it; or copy the file of another run");
  const Json lock = parse_json(read_file(path), path);
  const Json& plugins = json_at(lock, "plugins", path);
  if (!plugins.is_array()) throw config_error(path + ": 'plugins' is not a list");
  std::map<std::string, int> num_versions;
  for (const Json& plugin : plugins) ++num_versions[json_string(plugin, "id", path)];
  const auto add = [&](const std::string& id, const std::string& key, const Json& entry) {
    const std::string hash = json_string(entry, "sha256", path);
    const PluginPin pin = parse_pin(id, "sha256:" + hash, {path});
    if (const auto known = policy.pins.find(id); known != policy.pins.end() && known->second.sha256 != pin.sha256)
      throw Error(
          ExitCode::kConfig, known->second.where,
          "plugins.pin." + id + " is sha256:" + known->second.sha256 + ", and '" + path + "' says sha256:" + hash);
    policy.pins[key] = pin;
  };
  for (const Json& plugin : plugins) {
    const std::string id = json_string(plugin, "id", path);
    const std::string key = num_versions[id] == 1 ? id : id + "@" + json_string(plugin, "version", path);
    add(id, key, plugin);
    if (!plugin.contains("libraries")) continue;
    if (!plugin["libraries"].is_array()) throw config_error(path + ": 'libraries' of plugin " + id + " is not a list");
    for (const Json& library : plugin["libraries"]) {
      const std::string below = "/" + json_string(library, "name", path);
      add(id + below, key + below, library);
    }
  }
  policy.only_pinned = path;
}

}  // namespace

LoadPolicy load_policy(const Settings& settings) {
  LoadPolicy policy;
  const Json pins = to_json(*settings.plugins.pin);
  for (const auto& [id, pin] : pins.items()) policy.pins[id] = read_pin(settings.plugins.pin, id, pin);
  if (settings.plugins.locked) pin_to_lock(settings, policy);
  policy.trust.folders = settings.plugins.trust;
  return policy;
}

RunPlugins::RunPlugins(const Config& config, MetricsStore& metrics, PluginIndex index, LoadPolicy policy)
    : config_(config),
      shared_(std::make_shared<Shared>(static_cast<uint64_t>(*config.settings().run.seed), metrics, std::move(index),
                                       std::move(policy))) {
  services().set_registry(&registry());
}

std::unique_ptr<Instance> RunPlugins::create(const std::string& slot_key, const std::string& kind,
                                             const std::string& id) {
  Json options = config_.plugin_options(slot_key);
  std::map<std::string, std::string> origins;
  for (const auto& [name, value] : options.items()) {
    const Origin origin = config_.plugin_option_origin(slot_key, name);
    origins[name] = origin.by_user() ? origin.text() : "default";  // as chassis.options/1 defines it
  }
  auto instance = registry().create(kind, id, std::move(options), std::move(origins));
  PluginRegistry::start(*instance);
  return instance;
}

}  // namespace chassis
