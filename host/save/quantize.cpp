// Reads a model and writes its components.
#include "host/save/quantize.hpp"

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/config/config.hpp"
#include "host/plugin/search.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/quantized_weights.hpp"
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

SaveResult quantize_model(const QuantizeRequest& request) {
  refuse_adapter_format(request.format);
  if (has_quantized_weights(request.model))
    throw config_error("'" + request.model + "' is quantized already: its config.json has a quantization_config")
        .hint("quantize the model from which it was made");
  std::vector<std::string> overrides = {"model.path=" + request.model, "model.init=random", "run.device=cpu",
                                        "export.dtype=" + request.dtype};
  std::string plugin = request.quant;
  for (const std::string& option : request.options) {
    constexpr std::string_view kPlugin = "quant.plugin=";
    if (option.starts_with(kPlugin) && (plugin.empty() || plugin == option.substr(kPlugin.size()))) {
      plugin = option.substr(kPlugin.size());
      continue;
    }
    if (!option.starts_with("quant.") || option.starts_with("quant.plugin"))
      throw config_error("'" + printable(option) + "' is no option of the quantization")
          .hint("write quant.KEY=VALUE, such as quant.double_quant=true; --quant chooses the plugin");
    overrides.push_back(option);
  }
  overrides.push_back("quant.plugin=" + quant_plugin(plugin, request.plugin_path));
  if (!request.format.empty()) overrides.push_back("export.plugin=" + request.format);
  Session session(load_config_text("schema_version = 1\n", "ckpt quantize", overrides, ConfigUse::kWeights),
                  {.plugin_path = request.plugin_path, .target = {.without_device = true}});
  const OutputDirectory place(request.directory, {request.model}, false);
  const auto reader = open_directory(session, request.model);
  compare_with_manifest(request.model, reader->manifest());
  const ModelDirectory directory(session, *reader);
  directory.compare_tied_copies(*reader);
  std::vector<LoadTensor> wanted;
  for (const auto& p : session.parameters().all())
    if (directory.has(*p)) {
      wanted.push_back(directory.load_tensor(p->descriptor));
      wanted.back().descriptor.components.clear();
    }
  LoadOptions options;
  options.skip = directory.skip();
  reader->check(wanted, options);

  const BucketPair buckets(bucket_bytes(session));
  QuantizedWeights quantized(session, *reader, directory);
  const auto instance = slot_format(session, session.settings().exports);
  const FormatPlugin format(*instance);
  const SavePlan plan = plan_export(session, format, &quantized);
  SaveRequest save;
  save.parent = place.parent();
  save.name = place.name();
  save.mode = shared_file_mode(request.model);
  save.source = [values = reader->source([&](const Descriptor& tensor) { return directory.parts(tensor); }, true),
                 literals = from_tensors(exported_tensors(session)), components = quantized.source(), &session,
                 &quantized](const SavePlan& whole, const SavePart& part, const ReserveBytes& room) {
    const Descriptor& tensor = whole.tensors[part.tensor].descriptor;
    if (quantized.has(tensor))
      components(whole, part, room);
    else if (session.disk_mapping().literals().contains(tensor.fqn))
      literals(whole, part, room);
    else
      values(whole, part, room);
  };
  save.text_files = {{"config.json", export_config(session, true)}};
  save.carried_files = files_to_copy(request.model, {"config.json"});
  ProgressBar bar("writing " + request.directory);
  save.progress = [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  SaveResult saved = CheckpointWriter(format, buckets).save(plan, save);
  place.log_replaced();
  return saved;
}

}  // namespace chassis
