#include "host/train/saver.hpp"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/train/progress.hpp"

namespace chassis {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Instance> slot_format(Session& session, const std::string& slot) {
  return session.create(slot, "format", session.config().get_string(slot + ".plugin"));
}

uint64_t bucket_bytes(const Session& session) {
  return static_cast<uint64_t>(session.config().get_int("checkpoint.bucket_mib")) << 20;
}

// As it is saved and loaded: ranks that hold the same take turns in writing and reading it.
Descriptor shared(Descriptor descriptor) {
  descriptor.owner = OwnerRule::kSpread;
  return descriptor;
}

// Everything a resumed run needs: parameters by name, optimizer states by parameter and role.
std::vector<Descriptor> training_tensors(Session& session) {
  std::vector<Descriptor> tensors;
  for (const auto& p : session.parameters().all()) tensors.push_back(shared(p->descriptor));
  for (const OptimizerState& state : session.optimizer().states()) tensors.push_back(shared(state.descriptor));
  return tensors;
}

LocalTensors local_tensors(Session& session, bool with_states) {
  auto by_name = std::make_shared<std::map<std::string, Tensor>>();
  for (const auto& p : session.parameters().all()) (*by_name)[p->name] = p->stored();
  if (with_states)
    for (const OptimizerState& state : session.optimizer().states()) (*by_name)[state.descriptor.fqn] = state.tensor;
  return [by_name](const Descriptor& tensor, int) { return by_name->at(tensor.fqn); };
}

SavePlan plan_checkpoint(Session& session, const FormatPlugin& format) {
  std::vector<SaveTensor> tensors;
  for (Descriptor& descriptor : training_tensors(session)) tensors.push_back(SaveTensor::plain(std::move(descriptor)));
  return plan_save(std::move(tensors), session.mesh(), format);
}

Dtype export_dtype(Session& session) {
  std::string name = session.config().get_string("export.dtype");
  if (name == "auto") name = session.stored_dtype();
  if (name == "bf16" || name == "bfloat16") return Dtype::bf16;
  if (name == "fp16" || name == "float16") return Dtype::f16;
  return Dtype::f32;
}

SavePlan plan_export(Session& session, const FormatPlugin& format) {
  std::vector<SaveTensor> tensors;
  for (const auto& p : session.parameters().all()) {
    const std::string name = session.disk_name(p->name);
    if (!name.empty()) tensors.push_back({shared(p->descriptor), name, export_dtype(session)});
  }
  return plan_save(std::move(tensors), session.mesh(), format);
}

// The model's config with the dtype that the export is written in, under both of its names.
std::string export_config(Session& session) {
  Json config = parse_json(session.model_config(), "the model's config");
  const Dtype dtype = export_dtype(session);
  const char* name = dtype == Dtype::bf16 ? "bfloat16" : dtype == Dtype::f16 ? "float16" : "float32";
  for (const char* key : {"dtype", "torch_dtype"})
    if (config.contains(key) || std::string_view(key) == "torch_dtype") config[key] = name;
  return config.dump(2) + "\n";
}

// The format of a directory: its manifest says, or else it is what exports are written in.
std::string format_of(Session& session, const std::string& path) {
  if (!fs::exists(fs::path(path) / kManifestName)) return session.config().get_string("export.plugin");
  SourceDirectory directory(path);
  return CheckpointManifest::read(directory).format;
}

void compare_with_model(Session& session, const SavePlan& plan, const FormatPlugin& exported) {
  const Config& config = session.config();
  if (!config.has("model.path") || config.get_string("model.init") != "pretrained") return;
  std::vector<std::string> differences =
      compare_with_directory(plan, CheckpointReader(config.get_string("model.path"), exported));
  for (const std::string& difference : differences) log::counted_warning("export differs from the model it starts from", difference);
}

// What rank 0 finds is what all ranks go by.
std::string found_by_first(World& world, const std::string& what, const std::function<std::string()>& find) {
  std::string found;
  world.together(what, [&] {
    if (world.rank() == 0) found = find();
  });
  return world.exchange(what, found)[0];
}

// Damage that one rank finds is thrown on all.
void together_unless_damaged(World& world, const std::string& what, const std::function<void()>& part) {
  std::optional<DamagedCheckpoint> own;
  world.together(what, [&] {
    try {
      part();
    } catch (const DamagedCheckpoint& damage) {
      own = damage;
    }
  });
  const std::vector<std::string> all = world.exchange(what, own ? own->message() : "");
  if (own) throw *own;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) throw DamagedCheckpoint("rank " + std::to_string(rank) + ": " + all[rank]);
}

// What one rank has read, all that hold it get from there.
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

LoadOptions load_options(Session& session) {
  LoadOptions options;
  options.rank = session.rank();
  options.owned_only = session.ranks().communicator != nullptr;
  return options;
}

LoadResult read_weights(Session& session, const std::string& path, const BucketPair& buckets,
                        const LocalTensors& local, std::vector<LoadTensor>& tensors) {
  const std::string format_name = format_of(session, path);
  const auto instance = session.registry().create_default("format", format_name);
  instance->prepare();
  instance->activate();
  const FormatPlugin format(*instance);
  CheckpointReader reader(path, format);

  const bool ours = reader.manifest() && reader.manifest()->resumable;
  std::map<std::string, std::string> disk_names;  // by parameter
  std::set<std::string> skipped;
  for (const DiskTensor& tensor : reader.tensors()) {
    const std::string name = ours ? tensor.name : session.parameter_name(tensor.name);
    if (name.empty() || (ours && !session.parameters().find(name))) skipped.insert(tensor.name);
    else disk_names[name] = tensor.name;
  }
  for (const auto& p : session.parameters().all()) {
    const auto found = disk_names.find(p->name);
    tensors.push_back({shared(p->descriptor), found != disk_names.end() ? found->second : session.disk_name(p->name)});
  }
  ProgressBar bar("loading " + path);
  LoadOptions options = load_options(session);
  options.skip = [&](const std::string& name) { return skipped.count(name) != 0; };
  if (session.world().rank() == 0)
    options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  return reader.load(tensors, session.mesh(), buckets, local, options);
}

void load_weights(Session& session, const std::string& path, const BucketPair& buckets) {
  const LocalTensors local = local_tensors(session, false);
  std::vector<LoadTensor> tensors;
  LoadResult result;
  session.world().together("loading " + path, [&] { result = read_weights(session, path, buckets, local, tensors); });
  share_what_was_read(session, tensors, result, local, buckets);
  session.publish();
  double read[] = {static_cast<double>(result.num_bytes)};
  session.ranks().sum(read, "bytes read");
  log::info("loaded {} tensors, {} from {}", tensors.size() - result.absent.size(),
            bytes_text(static_cast<uint64_t>(read[0])), path);
}

}  // namespace

void load_weights(Session& session, const std::string& from) {
  const Config& config = session.config();
  const std::string path = found_by_first(session.world(), "finding weights", [&]() -> std::string {
    if (!from.empty()) return from;
    if (const auto newest = newest_checkpoint(config.get_string("run.output_dir") + "/checkpoints")) return newest->path;
    if (config.has("model.path")) return config.get_string("model.path");
    throw storage_error("there are no weights: " + config.get_string("run.output_dir") +
                        "/checkpoints has no checkpoint")
        .hint("train first, or give --from with a checkpoint or model directory");
  });
  load_weights(session, path, BucketPair(bucket_bytes(session)));
}

uint64_t prove_saving(Session& session) {
  const auto checkpoint = slot_format(session, "checkpoint"), exported = slot_format(session, "export");
  return std::max(plan_checkpoint(session, FormatPlugin(*checkpoint)).largest_header(),
                  plan_export(session, FormatPlugin(*exported)).largest_header());
}

void compare_with_model(Session& session) {
  const auto exported = slot_format(session, "export");
  const FormatPlugin format(*exported);
  compare_with_model(session, plan_export(session, format), format);
}

Saver::Saver(Session& session, std::string directory)
    : session_(session),
      directory_(std::move(directory)),
      checkpoint_instance_(slot_format(session, "checkpoint")),
      export_instance_(slot_format(session, "export")),
      checkpoint_format_(*checkpoint_instance_),
      export_format_(*export_instance_),
      buckets_(bucket_bytes(session)) {
  session.world().together("opening " + checkpoints(), [&] {
    const bool is_first = session.world().rank() == 0;
    if (is_first) root_.emplace(checkpoints());
    if (!session.config().get_bool("checkpoint.self_test")) return;
    checkpoint_plan();
    export_plan();
    if (is_first) compare_with_model(session, export_plan(), export_format_);
  });
}

const SavePlan& Saver::checkpoint_plan() {
  if (!checkpoint_plan_) checkpoint_plan_ = plan_checkpoint(session_, checkpoint_format_);
  return *checkpoint_plan_;
}

const SavePlan& Saver::export_plan() {
  if (!export_plan_) export_plan_ = plan_export(session_, export_format_);
  return *export_plan_;
}

void Saver::start_from(const std::string& model) { load_weights(session_, model, buckets_); }

SaveResult Saver::save(int64_t step, const Json& state) {
  const SavePlan& plan = checkpoint_plan();
  CheckpointWriter writer(checkpoint_format_, buckets_);
  SaveRequest request;
  request.parent = checkpoints();
  request.name = step_directory_name(step);
  request.step = step;
  request.resumable = true;
  request.state = state;
  request.about = {{"model", session_.model_member()}, {"plugins", session_.registry().lock()}};
  request.tensors = local_tensors(session_, true);
  request.text_files = {{"config.json", session_.model_config()}, {"resolved.toml", session_.config().resolved_toml()}};
  SaveResult result = writer.save(plan, request, session_.world());
  session_.world().together("latest is " + request.name, [&] {
    if (!root_) return;
    root_->set_latest(request.name);
    root_->prune(static_cast<int>(session_.config().get_int("checkpoint.keep_last")));
  });
  return result;
}

// Best to resume from first, as rank 0 sees them.
std::vector<CheckpointInfo> Saver::candidates() {
  const std::string list = found_by_first(session_.world(), "finding checkpoints", [&] {
    Json lines = Json::array();
    for (const CheckpointInfo& found : checkpoints_to_resume(checkpoints()))
      lines.push_back({{"name", found.name}, {"path", found.path}, {"defect", found.defect}});
    return lines.dump();
  });
  std::vector<CheckpointInfo> out;
  for (const Json& line : Json::parse(list)) {
    CheckpointInfo& found = out.emplace_back();
    found.name = line["name"].get<std::string>();
    found.path = line["path"].get<std::string>();
    found.defect = line["defect"].get<std::string>();
  }
  return out;
}

std::optional<Saver::Resumed> Saver::resume() {
  const std::string wanted = session_.config().get_string("run.resume");
  if (wanted == "never") return std::nullopt;
  if (wanted != "auto") return load_checkpoint(wanted);
  std::optional<DamagedCheckpoint> damage;
  for (const CheckpointInfo& checkpoint : candidates()) {
    try {
      if (!checkpoint.defect.empty()) throw DamagedCheckpoint("'" + checkpoint.path + "': " + checkpoint.defect);
      return load_checkpoint(checkpoint.path);
    } catch (const DamagedCheckpoint& error) {
      if (session_.world().rank() == 0) pass_over(checkpoint, error.message());
      damage = error;
    }
  }
  if (!damage) return std::nullopt;
  damage->hint("no checkpoint of this run is whole; to start anew, move " + checkpoints() + " away");
  throw *damage;
}

Saver::Resumed Saver::load_checkpoint(const std::string& path) {
  const LocalTensors local = local_tensors(session_, true);
  std::vector<LoadTensor> tensors;
  for (Descriptor& descriptor : training_tensors(session_)) tensors.push_back({std::move(descriptor), ""});
  LoadResult result;
  Json state;
  together_unless_damaged(session_.world(), "loading " + path, [&] { result = read_checkpoint(path, tensors, local, state); });
  share_what_was_read(session_, tensors, result, local, buckets_);
  session_.publish();
  return {path, state};
}

LoadResult Saver::read_checkpoint(const std::string& path, const std::vector<LoadTensor>& tensors,
                                  const LocalTensors& local, Json& state) {
  const std::string format_name = format_of(session_, path);
  if (format_name != checkpoint_format_.name())
    throw storage_error(path + " is of format '" + format_name + "', [checkpoint] plugin is '" +
                        checkpoint_format_.name() + "'")
        .hint("set checkpoint.plugin = \"" + format_name + "\"");
  CheckpointReader reader(path, checkpoint_format_);
  if (!reader.manifest() || !reader.manifest()->resumable)
    throw storage_error(path + " holds weights alone and can not be resumed")
        .hint("start from it instead: model.path = \"" + path + "\"");
  state = reader.manifest()->state;
  return reader.load(tensors, session_.mesh(), buckets_, local, load_options(session_));
}

SaveResult Saver::export_model(const std::string& name, int64_t step) {
  const Config& config = session_.config();
  const SavePlan& plan = export_plan();
  CheckpointWriter writer(export_format_, buckets_);
  SaveRequest request;
  request.parent = directory_;
  request.name = name;
  request.step = step;
  request.tensors = local_tensors(session_, false);
  request.text_files = {{"config.json", export_config(session_)}};
  if (config.has("model.path"))
    request.carried_files = files_to_carry(config.get_string("model.path"), {"config.json"});
  return writer.save(plan, request, session_.world());
}

}  // namespace chassis
