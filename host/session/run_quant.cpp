// Opens the plugin of [quant].
#include "host/session/run_quant.hpp"

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/session/run_adapter.hpp"

namespace chassis {

RunQuant::RunQuant(const PluginTable& settings, RunPlugins& plugins, const RunModel& model)
    : instance_(plugins.create(settings.key(), "quant", settings.plugin)),
      plugin_(*instance_),
      pass_(plugin_, [&model](const Program& recorded) { return file_names(model, recorded); }) {
  const Json config = parse_json(model.config_text(), "the model's config");
  const auto found = config.find("quantization_config");
  is_stored_ = plugin_.configure(found == config.end() || found->is_null() ? "" : found->dump());
}

}  // namespace chassis
