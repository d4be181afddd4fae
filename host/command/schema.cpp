// `chassis schema`: documents every key of the host and of every installed plugin.
#include <cstddef>
#include <cstdio>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/output.hpp"
#include "host/base/printable.hpp"
#include "host/command/command.hpp"
#include "host/command/installed_plugins.hpp"
#include "host/command/json_document.hpp"
#include "host/compile/model_plugin.hpp"
#include "host/plugin/registry.hpp"
#include "host/service/host_services.hpp"

namespace chassis {
namespace {

// The keys of a model's config, and their defaults.
std::vector<std::pair<std::string, std::string>> model_config_keys(PluginRegistry& registry, const std::string& id) {
  const auto model = registry.open("model", id);
  const ModelPlugin plugin(*model);
  plugin.configure("{}");
  std::vector<std::pair<std::string, std::string>> keys;
  const Json config = parse_json(plugin.config(), "the config of model '" + id + "'", ExitCode::kPlugin);
  for (const auto& [name, value] : config.items()) keys.emplace_back(name, value.dump());
  return keys;
}

}  // namespace

std::vector<PluginDoc> installed_plugin_docs(const std::vector<std::string>& plugin_path, const std::string& key) {
  MetricsStore metrics;
  HostServices services(0, metrics);
  PluginRegistry registry(PluginIndex(plugin_folders(plugin_path, {}, {})), {}, services);
  std::vector<PluginDoc> plugins;
  for (const PluginFile& file : registry.index().files())
    for (const MemberName& member : file.manifest.members) {
      if (registry.index().find(member.kind, member.id) != &file || !unusable_reason(file, member).empty()) continue;
      try {
        plugins.push_back({member.kind, member.id, registry.doc(member.kind, member.id),
                           registry.option_specs(member.kind, member.id)});
        if (member.kind == "model" && key == "model.config")
          plugins.back().config = model_config_keys(registry, member.id);
      } catch (const Error& error) {
        counted_warning("plugins left out: " + member.text(), std::string("left out: ") + error.what());
      }
    }
  return plugins;
}

Verb add_schema(CLI::App& app) {
  auto key = std::make_shared<std::string>();
  auto plugin_path = std::make_shared<std::vector<std::string>>();
  auto as_json = std::make_shared<bool>(false);
  app.add_option("key", *key, "a table, key or plugin, such as optimizer, train.seq_len or adamw; default: all");
  add_json(app, *as_json);
  add_plugin_path(app, *plugin_path);
  return [=] {
    const std::vector<PluginDoc> plugins = installed_plugin_docs(*plugin_path, *key);
    if (*as_json)
      print_document("schema", schema_json(host_schema(), plugins, *key));
    else
      std::fprintf(output(), "%s", printable_lines(schema_text(host_schema(), plugins, *key)).c_str());
    return 0;
  };
}

}  // namespace chassis
