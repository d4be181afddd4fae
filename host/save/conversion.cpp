// Plans the export of a session's model, and chooses what fills each of its tensors.
#include "host/save/conversion.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "host/base/progress.hpp"
#include "host/checkpoint/format_plugin.hpp"
#include "host/checkpoint/writer.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {

SaveResult write_model(Session& session, const ModelContents& contents, SaveRequest request,
                       const BucketPair& buckets) {
  const auto instance = slot_format(session, session.settings().exports);
  const FormatPlugin format(*instance);
  QuantizedWeights* const quantized = contents.quantized;
  const SavePlan plan = plan_export(session, format, quantized);
  request.source = [&, literals = from_tensors(exported_tensors(session)),
                    components = quantized != nullptr ? quantized->source() : PartSource(), num_done = size_t{0}](
                       const SavePlan& whole, const SavePart& part, const ReserveBytes& room) mutable {
    const Descriptor& tensor = whole.tensors[part.tensor].descriptor;
    if (quantized != nullptr && quantized->has(tensor))
      components(whole, part, room);
    else if (session.disk_mapping().literals().contains(tensor.fqn))
      literals(whole, part, room);
    else
      contents.values(whole, part, room);
    if (++num_done == whole.parts.size() && contents.on_read) contents.on_read();
  };
  return CheckpointWriter(format, buckets).save(plan, request);
}

Conversion::Conversion(const std::string& verb, const WeightsConfig& model, const std::vector<std::string>& plugin_path,
                       std::string directory, const std::vector<std::string>& sources, int64_t num_scores)
    : session_(weights_config(model, verb),
               {.plugin_path = plugin_path, .target = {.without_device = true}, .num_scores = num_scores}),
      directory_(std::move(directory)),
      place_(directory_, sources, false) {}

SaveResult Conversion::write(const ModelContents& contents, SaveRequest request) {
  request.parent = place_.parent();
  request.name = place_.name();
  ProgressBar bar("writing " + directory_);
  request.progress = [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  SaveResult saved = write_model(session_, contents, std::move(request), BucketPair(bucket_bytes(session_)));
  place_.log_replaced();
  return saved;
}

}  // namespace chassis
