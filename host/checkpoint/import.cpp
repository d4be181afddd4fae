// Metadata of a source: "optimizer_state" for each kind of state, whose tensors are named <parameter>.<state>;
// "optimizer_step" and "step"; "tied <name>" for each parameter that is stored as another one.
#include "host/checkpoint/import.hpp"

#include <algorithm>
#include <set>

#include "host/base/log.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/output_directory.hpp"

namespace chassis {
namespace {

std::string value_of(const MetadataPairs& metadata, std::string_view key) {
  const auto it = std::find_if(metadata.begin(), metadata.end(), [&](const auto& pair) { return pair.first == key; });
  return it == metadata.end() ? "" : it->second;
}

bool is_state(const CheckpointReader& source, const MetadataPairs& metadata, const std::string& name) {
  return std::any_of(metadata.begin(), metadata.end(), [&](const auto& pair) {
    const std::string suffix = "." + pair.second;
    return pair.first == "optimizer_state" && name.ends_with(suffix) &&
           source.find(name.substr(0, name.size() - suffix.size())) != nullptr;
  });
}

int64_t imported_step(const MetadataPairs& metadata) {
  for (const char* key : {"optimizer_step", "step"}) {
    const std::string text = value_of(metadata, key);
    if (!text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == text.npos) return std::stoll(text);
  }
  return 0;
}

}  // namespace

SaveResult import_checkpoint(CheckpointReader& source, const FormatPlugin& format, const ImportRequest& request,
                             const BucketPair& buckets) {
  const OutputDirectory place(request.directory, {source.path(), request.base}, request.resumable);
  compare_with_manifest(request.base);
  const MetadataPairs& metadata = source.metadata();
  std::vector<SaveTensor> tensors;
  uint64_t num_left_out = 0;
  if (request.resumable && value_of(metadata, "optimizer_state").empty())
    throw storage_error("'" + source.path() +
                        "' has no optimizer states that can be read, so a run could not resume from it")
        .hint("leave out --checkpoint to import only the weights");
  for (const DiskTensor& tensor : source.tensors()) {
    const bool state = is_state(source, metadata, tensor.name);
    if (state && !request.resumable) {
      ++num_left_out;
      continue;
    }
    SaveTensor save = SaveTensor::plain(Descriptor::plain(tensor.name, tensor.dtype, tensor.global_shape));
    if (!state && is_float(tensor.dtype)) save.disk_dtype = request.dtype;
    tensors.push_back(std::move(save));
  }
  if (num_left_out > 0) {
    counted_warning("weights only",
                    std::to_string(num_left_out) + " optimizer states are left out; --checkpoint keeps them",
                    num_left_out);
  }
  for (const auto& [key, value] : metadata)
    if (key.starts_with("tied ")) log::info("'{}' is tied to '{}' and stored once", key.substr(5), value);

  SaveRequest save;
  save.parent = place.parent();
  save.name = place.name();
  save.mode = shared_file_mode(source.path());
  save.step = imported_step(metadata);
  if (const auto named = step_of_name(save.name); named && *named != save.step)
    throw storage_error("'" + request.directory + "' has the name of step " + std::to_string(*named) +
                        ", but this is step " + std::to_string(save.step))
        .hint("name it " + step_directory_name(save.step));
  save.resumable = request.resumable;
  save.about = {{"imported", Json::object()}};
  for (const auto& [key, value] : metadata) save.about["imported"][key] = value;
  if (request.resumable) {
    save.about["names"] = kParameterNames;
    save.state = {{"step", save.step}, {"tokens", 0}, {"trained_tokens", 0}, {"skipped_steps", 0}};
  }
  save.source = source.source();
  save.progress = request.progress;
  if (!request.base.empty()) save.carried_files = files_to_copy(request.base);
  SaveResult saved = CheckpointWriter(format, buckets).save(plan_save(std::move(tensors), MeshShape(), format), save);
  place.log_replaced();
  return saved;
}

}  // namespace chassis
