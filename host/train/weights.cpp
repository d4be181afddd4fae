#include "host/train/weights.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checkpoint_root.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/train/finite.hpp"
#include "host/train/progress.hpp"
#include "host/train/saved_tensors.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

// What a directory calls the parameters of a model, and what it has besides.
struct NamesOnDisk {
  NamesOnDisk(Session& session, const CheckpointReader& reader) {
    const bool ours = reader.manifest() && reader.manifest()->about.value("names", "") == kParameterNames;
    for (const DiskTensor& tensor : reader.tensors()) {
      const std::string name = ours ? tensor.name : session.parameter_name(tensor.name);
      if (name.empty() || (ours && !session.parameters().find(name)))
        others.insert(tensor.name);
      else
        of_parameter[name] = tensor.name;
    }
    for (const auto& p : session.parameters().all()) of_parameter.try_emplace(p->name, session.disk_name(p->name));
  }

  std::map<std::string, std::string> of_parameter;
  std::set<std::string> others;
};

LoadResult read_weights(Session& session, CheckpointReader& reader, const BucketPair& buckets,
                        const LocalTensors& local, std::vector<LoadTensor>& tensors) {
  const NamesOnDisk names(session, reader);
  for (Descriptor& descriptor : training_tensors(session, false)) {
    const std::string& name = names.of_parameter.at(descriptor.fqn);
    tensors.push_back({std::move(descriptor), name});
  }
  ProgressBar bar("loading " + reader.path());
  LoadOptions options = load_options(session);
  options.skip = [&](const std::string& name) { return names.others.contains(name); };
  if (session.world().rank() == 0)
    options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  return reader.load(tensors, session.mesh(), buckets, local, options);
}

}  // namespace

std::string found_by_first(World& world, const std::string& what, const std::function<std::string()>& find) {
  std::string found;
  world.together(what, [&] {
    if (world.rank() == 0) found = find();
  });
  return world.exchange(what, found)[0];
}

LoadOptions load_options(Session& session) {
  LoadOptions options;
  options.rank = session.rank();
  options.owned_only = session.ranks().communicator != nullptr;
  return options;
}

void share_what_was_read(Session& session, const std::vector<LoadTensor>& tensors, const LoadResult& result,
                         const LocalTensors& local, const BucketPair& buckets) {
  Communicator* communicator = session.ranks().communicator;
  if (communicator == nullptr) return;
  std::vector<Descriptor> filled;
  for (const LoadTensor& tensor : tensors)
    if (std::find(result.absent.begin(), result.absent.end(), tensor.descriptor.fqn) == result.absent.end())
      filled.push_back(tensor.descriptor);
  fill_replicas(filled, local, session.device(), static_cast<int64_t>(buckets.bucket_bytes()), *communicator);
}

void load_weights(Session& session, const std::string& path, const BucketPair& buckets) {
  const LocalTensors local = local_tensors(session, false);
  std::vector<LoadTensor> tensors;
  std::unique_ptr<CheckpointReader> reader;
  LoadResult result;
  session.world().together("loading " + path, [&] {
    reader = open_directory(session, path);
    result = read_weights(session, *reader, buckets, local, tensors);
  });
  const ReadBytes read = reader->verify_parts(result, session.world());
  share_what_was_read(session, tensors, result, local, buckets);
  session.publish();
  require_finite(session, "the weights in " + path);
  session.metrics().set("loaded_bytes", static_cast<double>(read.num_bytes));
  log::info("loaded {} tensors from {}: {}", tensors.size() - result.absent.size(), path, read.text());
}

void load_weights(Session& session, const std::string& from) {
  const Config& config = session.config();
  const std::string path = found_by_first(session.world(), "finding weights", [&]() -> std::string {
    if (!from.empty()) return from;
    if (const auto newest = newest_checkpoint(config.get_string("run.output_dir") + "/checkpoints"))
      return newest->path;
    if (config.has("model.path")) return config.get_string("model.path");
    throw storage_error("there are no weights: " + config.get_string("run.output_dir") +
                        "/checkpoints has no checkpoint")
        .hint("train first, or give --from with a checkpoint or model directory");
  });
  load_weights(session, path, BucketPair(bucket_bytes(session)));
}

SaveResult export_checkpoint(const ExportRequest& request) {
  std::vector<std::string> overrides = {"model.path=" + request.checkpoint, "model.init=random", "run.device=cpu",
                                        "export.dtype=" + request.dtype};
  if (!request.format.empty()) overrides.push_back("export.plugin=" + request.format);
  Session session(load_config_text("schema_version = 1\n", "ckpt export", overrides, ConfigUse::kWeights),
                  {.plugin_path = request.plugin_path, .without_device = true});
  const auto opened = open_directory(session, request.checkpoint);
  CheckpointReader& reader = *opened;
  const NamesOnDisk names(session, reader);
  std::vector<LoadTensor> wanted;
  for (const auto& p : session.parameters().all()) wanted.push_back({p->descriptor, names.of_parameter.at(p->name)});
  LoadOptions options;
  options.skip = [&](const std::string& name) { return names.others.contains(name); };
  reader.check(wanted, options);

  const auto instance = slot_format(session, "export");
  const FormatPlugin format(*instance);
  const fs::path directory = fs::path(request.directory).lexically_normal();
  SaveRequest save;
  save.parent = directory.has_parent_path() ? directory.parent_path().string() : ".";
  save.name = directory.filename().string();
  save.step = reader.manifest() ? reader.manifest()->step : 0;
  save.source = reader.source([&](const Descriptor& tensor) { return names.of_parameter.at(tensor.fqn); });
  save.text_files = {{"config.json", export_config(session)}};
  if (!request.base.empty()) save.carried_files = files_to_carry(request.base, {"config.json"});
  const BucketPair buckets(bucket_bytes(session));
  return CheckpointWriter(format, buckets).save(plan_export(session, format), save);
}

}  // namespace chassis
