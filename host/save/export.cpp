// Reads a checkpoint and writes its parameters with the names and dtype of the model's files.
#include "host/save/export.hpp"

#include <optional>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/base_reference.hpp"
#include "host/save/classifier_config.hpp"
#include "host/save/conversion.hpp"
#include "host/save/opened_model.hpp"
#include "host/save/quantize.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {

SaveResult export_checkpoint(const ExportRequest& request) {
  const std::string adapter = request.checkpoint + "/" + kAdapterConfigName;
  const bool with_adapter = path_kind(adapter) != PathKind::kAbsent;
  if (!with_adapter) refuse_adapter_format(request.format);
  WeightsConfig model{.model = request.checkpoint, .dtype = request.dtype, .format = request.format};
  if (with_adapter) {
    model.adapter_plugin = adapter_plugin_of(request.checkpoint);
    model.adapter = request.checkpoint;
  }
  const bool is_quantized = has_quantized_weights(request.checkpoint);
  if (is_quantized) model.quant_plugin = quant_plugin(request.quant, request.plugin_path);
  Conversion conversion("ckpt export", model, request.plugin_path, request.directory,
                        {request.checkpoint, request.base});
  Session& session = conversion.session();
  compare_with_manifest(request.base);
  OpenedModel opened(session, request.checkpoint);
  if (!with_adapter && opened.directory().content() == Content::kTrained)
    throw storage_error("'" + request.checkpoint + "' holds only trained parameters")
        .hint("`chassis ckpt merge " + request.checkpoint + " --out DIR` adds them to the others");
  session.export_as(opened.directory().forms());
  if (is_quantized) opened.quantize();
  opened.check();

  SaveRequest save;
  save.mode = shared_file_mode(request.checkpoint);
  if (const CheckpointManifest* const manifest = opened.reader().manifest()) {
    save.step = manifest->step;
    if (with_adapter)
      if (const auto base = base_reference(manifest->about, request.checkpoint)) base->add_to(save.about);
  }
  if (const auto head = head_of(session); head && with_adapter) add_head(save.about, *head);
  save.text_files = {with_adapter
                         ? std::pair<std::string, std::string>(kAdapterConfigName, read_file(adapter))
                         : std::pair<std::string, std::string>("config.json", export_config(session, is_quantized))};
  save.carried_files = files_to_copy(request.base.empty() ? request.checkpoint : request.base, {"config.json"});
  return conversion.write({.quantized = opened.quantized(), .values = opened.values()}, std::move(save));
}

}  // namespace chassis
