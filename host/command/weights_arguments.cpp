// Chooses between the adapter of the configuration, that of a directory, and none.
#include "host/command/weights_arguments.hpp"

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/weights.hpp"

namespace chassis {

std::string adapter_override(const std::string& plugin, const std::string& directory) {
  const auto quoted = [](const std::string& text) { return Json(text).dump(); };
  return "adapter={ plugin = " + quoted(plugin) + ", path = " + quoted(directory) + " }";
}

void WeightsArguments::add_to(CLI::App& app) {
  app.add_option(
         "--from", from,
         "a checkpoint or model directory, or an adapter in PEFT's format; default: the newest checkpoint of the "
         "run")
      ->type_name("PATH");
  app.add_flag("--no-adapter", no_adapter, "use the base model of model.path without the adapter");
}

void WeightsArguments::choose_adapter(ConfigArguments& config, ConfigUse use) {
  const bool has_adapter = !from.empty() && path_kind(from + "/" + kAdapterConfigName) != PathKind::kAbsent;
  if (!has_adapter && !no_adapter) return;
  const Config given = config.load(use);
  const Settings& settings = given.settings();
  if (no_adapter) {
    if (from.empty() || has_adapter || is_run_directory(run_of(from))) {
      if (!settings.model.path.is_set())
        throw config_error(settings.model.path, "--no-adapter reads the weights of model.path, which is not set");
      from = settings.model.path;
    } else {
      log::info("--no-adapter: '{}' holds whole weights; an adapter that was merged into them cannot be left out",
                from);
    }
    config.overrides.push_back("adapter={}");
    if (settings.exports.merge) config.overrides.push_back("export.merge=false");
    return;
  }
  const Setting<std::string>& plugin = settings.adapter.plugin;
  config.overrides.push_back(adapter_override(plugin.is_set() ? *plugin : adapter_plugin_of(from), from));
}

}  // namespace chassis
