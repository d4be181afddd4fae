// Reads a model and writes its components.
#include "host/save/quantize.hpp"

#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/plugin/search.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/conversion.hpp"
#include "host/save/opened_model.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {

bool has_quantized_weights(const std::string& directory) {
  const std::string path = directory + "/config.json";
  if (path_kind(path) == PathKind::kAbsent) return false;
  compare_with_manifest(directory);
  const Json config = parse_json(read_file(path, uint64_t{16} << 20), path);
  const auto found = config.find("quantization_config");
  return config.is_object() && found != config.end() && !found->is_null();
}

std::string quant_plugin(const std::string& given, const std::vector<std::string>& plugin_path) {
  if (!given.empty()) return given;
  const std::vector<std::string> installed = PluginIndex(plugin_folders(plugin_path, {}, {})).ids("quant");
  if (installed.size() == 1) return installed.front();
  std::string names;
  for (const std::string& id : installed) names += (names.empty() ? "" : ", ") + printable(id);
  throw config_error(installed.empty() ? "no quant plugin is installed"
                                       : "several quant plugins are installed: " + names)
      .hint(installed.empty() ? "give its folder with --plugin-path" : "choose one with --quant NAME");
}

namespace {

// The options of the command line as the plugin and its own keys. Throws a config error if one is of another table.
void take_options(const QuantizeRequest& request, WeightsConfig& model) {
  std::string plugin = request.quant;
  for (const std::string& option : request.options) {
    constexpr std::string_view kPlugin = "quant.plugin=";
    if (option.starts_with(kPlugin) && (plugin.empty() || plugin == option.substr(kPlugin.size()))) {
      plugin = option.substr(kPlugin.size());
      continue;
    }
    if (!option.starts_with("quant.") || option.starts_with("quant.plugin"))
      throw config_error("'" + printable(option) + "' is not an option of the quantization")
          .hint("write quant.KEY=VALUE, such as quant.double_quant=true; --quant chooses the plugin");
    model.quant_options.push_back(option);
  }
  model.quant_plugin = quant_plugin(plugin, request.plugin_path);
}

}  // namespace

SaveResult quantize_model(const QuantizeRequest& request) {
  refuse_adapter_format(request.format);
  if (has_quantized_weights(request.model))
    throw config_error("'" + request.model + "' is already quantized: its config.json has a quantization_config")
        .hint("quantize the model from which it was made");
  WeightsConfig model{.model = request.model, .dtype = request.dtype, .format = request.format};
  take_options(request, model);
  Conversion conversion("ckpt quantize", model, request.plugin_path, request.directory, {request.model});
  OpenedModel opened(conversion.session(), request.model);
  conversion.session().export_as(opened.directory().forms());
  opened.check();  // its files have values
  opened.quantize();

  SaveRequest save;
  save.mode = shared_file_mode(request.model);
  save.text_files = {{"config.json", export_config(conversion.session(), true)}};
  save.carried_files = files_to_copy(request.model, {"config.json"});
  return conversion.write({.quantized = opened.quantized(), .values = opened.values()}, std::move(save));
}

}  // namespace chassis
