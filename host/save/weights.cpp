// Maps the tensors of a directory to parameters, loads them, and exports a checkpoint in one process.
#include "host/save/weights.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/session/finite.hpp"
#include "host/session/progress.hpp"

namespace chassis {
namespace {

// The parameters of a model in a directory, and its other tensors.
class ModelDirectory {
 public:
  ModelDirectory(Session& session, const CheckpointReader& reader) {
    const CheckpointManifest* manifest = reader.manifest();
    const bool ours = manifest && json_string_or(manifest->about, "names", "", reader.path()) == kParameterNames;
    if (!ours) mapping_ = &session.disk_mapping();
    const std::map<std::string, std::string> tied = tied_slots(session.program());
    for (const DiskTensor& tensor : reader.tensors()) {
      const std::string name = ours ? tensor.name : mapping_->name_of(tensor.name);
      if (name.empty() || (ours ? is_state(session.parameters(), name) : is_literal(tensor, name, reader))) {
        ignored_.insert(tensor.name);
        if (const auto owner = tied.find(tensor.name); owner != tied.end())
          tied_copies_.emplace_back(&tensor, session.parameters().find(owner->second)->descriptor);
      } else if (name == tensor.name || !in_file_.contains(name)) {
        in_file_[name] = tensor.name;
      }
    }
  }

  std::vector<DiskPart> parts(const Descriptor& parameter) const {
    if (mapping_ == nullptr) return {DiskPart::whole(parameter.fqn, parameter.global_shape)};
    std::vector<DiskPart> parts = mapping_->parts(parameter.fqn);
    for (DiskPart& part : parts)
      if (const auto found = in_file_.find(part.disk_name); found != in_file_.end()) part.disk_name = found->second;
    return parts;
  }
  LoadTensor load_tensor(Descriptor parameter) const {
    std::vector<DiskPart> where = parts(parameter);
    return {std::move(parameter), "", std::move(where)};
  }
  // Throws a storage error if files hold a second copy of a shared parameter with other values.
  void compare_tied_copies(CheckpointReader& reader) const {
    for (const auto& [copy, owner] : tied_copies_) {
      const std::vector<DiskPart> where = parts(owner);
      const auto in_files = [&](const DiskPart& part) { return reader.find(part.disk_name) != nullptr; };
      if (!std::all_of(where.begin(), where.end(), in_files)) continue;  // missing ones are reported with all others
      const std::vector<DiskPart> copied = {DiskPart::whole(copy->name, copy->global_shape)};
      // A model of other sizes altogether: loading names both shapes.
      const bool both_differ = where.size() == 1 && copy->global_shape != owner.global_shape &&
                               reader.find(where[0].disk_name)->global_shape == copy->global_shape;
      if (both_differ) continue;
      const bool same = copy->global_shape == owner.global_shape && is_float(copy->dtype) &&
                        reader.checksum(copy->global_shape, copied) == reader.checksum(owner.global_shape, where);
      if (!same)
        throw storage_error("'" + reader.path() + "' does not fit the model: " + copy->name + " " +
                            text(copy->global_shape) + " differs from " + owner.fqn + " " + text(owner.global_shape) +
                            ", to which the model ties it")
            .hint("if they are two weights, set tie_word_embeddings to false in config.json; else remove " +
                  copy->name + " from the files");
    }
  }
  // Whether loading may ignore a tensor of this name.
  std::function<bool(const std::string& name)> skip() const {
    return [this](const std::string& name) { return ignored_.contains(name); };
  }

 private:
  // Full names of slots that share a parameter, and the names of the parameters.
  static std::map<std::string, std::string> tied_slots(const Program& program) {
    std::map<std::string, std::string> tied;
    for (const Chain& chain : program.chains)
      for (size_t i = 0; i < chain.blocks.size(); ++i)
        for (const Slot& slot : program.blocks[chain.blocks[i]].slots)
          if (!slot.tied_to.empty()) tied[chain.parameter_name(i, slot)] = slot.tied_to;
    return tied;
  }
  // Optimizer states are named "<parameter>.<role>". Any other name is a parameter, of this model or another.
  static bool is_state(const ParameterTable& parameters, const std::string& name) {
    return !parameters.find(name) && parameters.find(name.substr(0, name.rfind('.')));
  }
  bool is_literal(const DiskTensor& tensor, const std::string& name, const CheckpointReader& reader) const {
    const auto literal = mapping_->literals().find(name);
    if (literal == mapping_->literals().end()) return false;
    if (literal->second.shape != tensor.global_shape)
      throw storage_error("'" + reader.path() + "' does not fit the model: " + tensor.name + " is " +
                          text(tensor.global_shape) + " on disk, " + text(literal->second.shape) + " in the model");
    return true;
  }

  const DiskMapping* mapping_ = nullptr;        // NULL: tensors have the names of the parameters
  std::map<std::string, std::string> in_file_;  // by the mapping's name
  std::set<std::string> ignored_;
  std::vector<std::pair<const DiskTensor*, Descriptor>> tied_copies_;  // with the parameter that each should equal
};

LoadResult read_weights(Session& session, CheckpointReader& reader, const BucketPair& buckets,
                        const LocalTensors& local, std::vector<LoadTensor>& tensors) {
  const ModelDirectory directory(session, reader);
  if (session.world().rank() == 0) directory.compare_tied_copies(reader);
  for (Descriptor& descriptor : training_tensors(session, false))
    tensors.push_back(directory.load_tensor(std::move(descriptor)));
  ProgressBar bar("loading " + reader.path());
  LoadOptions options = load_options(session);
  options.skip = directory.skip();
  if (session.world().rank() == 0)
    options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  return reader.load(tensors, session.mesh(), buckets, local, options);
}

// Joins texts for sending; each ends with NUL.
std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += part + '\0';
  return all;
}
std::vector<std::string> split(const std::string& all) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end; (end = all.find('\0', begin)) != all.npos; begin = end + 1)
    parts.push_back(all.substr(begin, end - begin));
  return parts;
}

// The checkpoints that rank 0 finds.
std::vector<CheckpointInfo> candidates(World& world, const std::string& root) {
  const std::vector<std::string> parts = split(find_on_rank_0(world, "finding checkpoints", [&] {
    std::vector<std::string> all;
    for (const CheckpointInfo& found : checkpoints_to_resume(root))
      all.insert(all.end(), {found.name, found.path, found.defect, found.unreadable});
    return joined(all);
  }));
  std::vector<CheckpointInfo> out;
  for (size_t i = 0; i + 4 <= parts.size(); i += 4) {
    CheckpointInfo& found = out.emplace_back();
    found.name = parts[i], found.path = parts[i + 1], found.defect = parts[i + 2], found.unreadable = parts[i + 3];
  }
  return out;
}

}  // namespace

bool is_run_directory(const std::string& path) {
  return !path.empty() && !is_checkpoint(path) && path_kind(path + "/checkpoints") == PathKind::kDirectory;
}

std::string run_of(const std::string& path) {
  constexpr std::string_view kFolder = "/checkpoints";
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (!folder.ends_with(kFolder) || is_checkpoint(folder)) return path;
  folder.resize(folder.size() - kFolder.size());
  return is_run_directory(folder) ? folder : path;
}

void run_and_agree_on_damage(World& world, const std::string& what, const std::function<void()>& part) {
  std::optional<DamagedCheckpoint> own;
  world.run_and_agree(what, [&] {
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

std::optional<CheckpointInfo> load_best(World& world, const std::string& root,
                                        const std::function<void(const std::string& path)>& load,
                                        const SkipCallback& on_skipped) {
  return use_first_intact(
      root, candidates(world, root), [&](const CheckpointInfo& found) { load(found.path); },
      [&](const CheckpointInfo& found, const std::string& why) {
        if (world.rank() == 0) on_skipped(found, why);
      });
}

void expect_same_files(World& world, const std::string& path) {
  std::string files;
  world.run_and_agree("looking into " + path, [&] {
    const SourceDirectory directory(path);
    for (const auto& file : directory.files()) files += file.path + " " + std::to_string(file.num_bytes) + " bytes\n";
  });
  world.expect_same("the files in " + path, files);
}

std::string find_on_rank_0(World& world, const std::string& what, const std::function<std::string()>& find) {
  std::string found;
  world.run_and_agree(what, [&] {
    if (world.rank() == 0) found = find();
  });
  return world.exchange(what, found)[0];
}

LoadOptions load_options(Session& session) {
  LoadOptions options;
  options.rank = session.rank();
  options.owned_only = true;
  return options;
}

void share_loaded(Session& session, const std::vector<LoadTensor>& tensors, const LoadResult& result,
                  const LocalTensors& local, const BucketPair& buckets) {
  std::vector<Descriptor> filled;
  for (const LoadTensor& tensor : tensors)
    if (std::find(result.absent.begin(), result.absent.end(), tensor.descriptor.fqn) == result.absent.end())
      filled.push_back(tensor.descriptor);
  fill_replicas(filled, local, session.device(), static_cast<int64_t>(buckets.bucket_bytes()),
                session.ranks().communicator);
}

void load_weights(Session& session, const std::string& path, const BucketPair& buckets) {
  const LocalTensors local = local_tensors(session, false);
  std::vector<LoadTensor> tensors;
  std::unique_ptr<CheckpointReader> reader;
  LoadResult result;
  expect_same_files(session.world(), path);
  run_and_agree_on_damage(session.world(), "loading " + path, [&] {
    reader = open_directory(session, path);
    if (session.world().rank() == 0) verify_copied_files(path, reader->manifest());
    result = read_weights(session, *reader, buckets, local, tensors);
  });
  const ReadBytes read = reader->verify_parts(result, session.world());
  share_loaded(session, tensors, result, local, buckets);
  session.refresh_parameters();
  require_finite(session, "the weights in " + path);
  for (const auto& [key, text] : model_differences(path, session))
    counted_warning("the model differs from that of its weights",
                    path + " was saved with another model: " + key + " " + text);
  session.metrics().set("loaded_bytes", static_cast<double>(read.num_bytes));
  log::info("loaded {} tensors from {}: {}", tensors.size() - result.absent.size(), path, read.text());
}

std::string load_weights(Session& session, const std::string& given) {
  const Settings& settings = session.settings();
  const std::string from = run_of(given);
  const BucketPair buckets(bucket_bytes(session));
  const bool from_run = is_run_directory(from);
  const auto load = [&](const std::string& path) { load_weights(session, path, buckets); };
  if (!from.empty() && !from_run) return load(from), from;
  const std::string root = (from_run ? from : *settings.run.output_dir) + "/checkpoints";
  if (const std::optional<CheckpointInfo> found = load_best(session.world(), root, load)) return found->path;
  if (from_run) throw no_checkpoint(from);
  if (settings.model.path.is_set()) return load(settings.model.path), *settings.model.path;
  throw storage_error("there are no weights: " + root + " has no checkpoint")
      .hint("train first, or give --from with a checkpoint or model directory");
}

SaveResult export_checkpoint(const ExportRequest& request) {
  std::vector<std::string> overrides = {"model.path=" + request.checkpoint, "model.init=random", "run.device=cpu",
                                        "export.dtype=" + request.dtype};
  if (!request.format.empty()) overrides.push_back("export.plugin=" + request.format);
  Session session(load_config_text("schema_version = 1\n", "ckpt export", overrides, ConfigUse::kWeights),
                  {.plugin_path = request.plugin_path, .target = {.without_device = true}});
  const OutputDirectory place(request.directory, {request.checkpoint, request.base}, false);
  const auto opened = open_directory(session, request.checkpoint);
  verify_copied_files(request.checkpoint, opened->manifest());
  CheckpointReader& reader = *opened;
  const ModelDirectory directory(session, reader);
  directory.compare_tied_copies(reader);
  std::vector<LoadTensor> wanted;
  for (const auto& p : session.parameters().all()) wanted.push_back(directory.load_tensor(p->descriptor));
  LoadOptions options;
  options.skip = directory.skip();
  reader.check(wanted, options);

  const auto instance = slot_format(session, session.settings().exports);
  const FormatPlugin format(*instance);
  SaveRequest save;
  save.parent = place.parent();
  save.name = place.name();
  save.mode = shared_file_mode(request.checkpoint);
  save.step = reader.manifest() ? reader.manifest()->step : 0;
  save.source = [parameters = reader.source([&](const Descriptor& tensor) { return directory.parts(tensor); }),
                 literals = from_tensors(exported_tensors(session)),
                 &session](const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
    const std::string& name = plan.tensors[part.tensor].descriptor.fqn;
    (session.disk_mapping().literals().contains(name) ? literals : parameters)(plan, part, room);
  };
  save.text_files = {{"config.json", export_config(session)}};
  save.carried_files = files_to_copy(request.base.empty() ? request.checkpoint : request.base, {"config.json"});
  const BucketPair buckets(bucket_bytes(session));
  SaveResult saved = CheckpointWriter(format, buckets).save(plan_export(session, format), save);
  place.log_replaced();
  return saved;
}

}  // namespace chassis
