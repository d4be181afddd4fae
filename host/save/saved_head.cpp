// Looks into config.json, the manifest, and the files of an adapter, in this order.
#include "host/save/saved_head.hpp"

#include <memory>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/config/weights_config.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/head_names.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxHeadConfigBytes = uint64_t{16} << 20;

// Whether an adapter that another program has saved may have a head: by its task, or by the file in which LLaMA-Factory
// saves one.
bool may_have_head(const std::string& adapter) {
  if (path_kind(adapter + "/value_head.safetensors") != PathKind::kAbsent) return true;
  const std::string path = adapter + "/" + kAdapterConfigName;
  return json_string_or(parse_json(read_file(path, kMaxHeadConfigBytes), path), "task_type", "", path) == "SEQ_CLS";
}

// The labels of the head of an adapter that another program has saved.
int64_t num_labels_in_adapter(const std::string& adapter, const std::string& base,
                              const std::vector<std::string>& plugin_path) {
  Session session(weights_config({.model = base}, "ckpt merge"),
                  {.plugin_path = plugin_path, .target = {.without_device = true}});
  const std::unique_ptr<CheckpointReader> reader = open_adapter(session, adapter);
  for (const HeadNames& names : kHeadNames)
    if (const DiskTensor* const head = reader->find(std::string(names.weight)); head && head->global_shape.ndim() == 2)
      return head->global_shape[0];
  return 0;
}

}  // namespace

std::optional<ScoreHead> saved_head(const std::string& directory, const std::string& base,
                                    const std::vector<std::string>& plugin_path) {
  if (const std::string path = directory + "/config.json"; path_kind(path) == PathKind::kFile)
    if (auto head = head_in_config(parse_json(read_file(path, kMaxHeadConfigBytes), path), path)) return head;
  if (SourceDirectory files(directory); files.find_file(kManifestName) >= 0) {
    const CheckpointManifest manifest = CheckpointManifest::read(files);
    if (auto head = head_in_manifest(manifest.about, directory)) return head;
  }
  if (!is_adapter_directory(directory) || !may_have_head(directory)) return std::nullopt;
  const int64_t num_labels = num_labels_in_adapter(directory, base, plugin_path);
  if (num_labels == 0) return std::nullopt;
  return ScoreHead{num_labels, default_problem_type(num_labels)};
}

}  // namespace chassis
