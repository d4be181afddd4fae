// Loads weights into a session from a directory, and exports a checkpoint in one process.
#include "host/save/weights.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/output_directory.hpp"
#include "host/checkpoint/reshard.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/quantize.hpp"
#include "host/save/quantized_load.hpp"
#include "host/save/quantized_weights.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/session/finite.hpp"

namespace chassis {
namespace {

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

unsigned shared_file_mode(const Settings& settings) {
  unsigned mode = 0644;
  for (const Setting<std::string>* directory : {&settings.model.path, &settings.adapter.path})
    if (directory->is_set() && path_kind(*directory) == PathKind::kDirectory) mode &= shared_file_mode(*directory);
  return mode;
}

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
      std::ranges::move(encoded_tensors(session.parameters(), tensor), std::back_inserter(filled));
  fill_replicas(filled, local, session.device(), static_cast<int64_t>(buckets.bucket_bytes()),
                session.ranks().communicator);
}

namespace {

struct LoadedPart {
  Content content = Content::kModel;
  std::string hash;  // hash of the frozen parameters, if requested
};

// [all-ranks] Fills the parameters that one directory has. If that is a model, those of an adapter get new values.
LoadedPart load_part(Session& session, const std::string& path, const BucketPair& buckets, bool is_adapter,
                     bool hashes) {
  std::vector<LoadTensor> tensors;
  std::unique_ptr<CheckpointReader> reader;
  std::optional<QuantizedLoad> quantized;
  LocalTensors local;
  LoadResult result;
  LoadedPart loaded;
  expect_same_files(session.world(), path);
  run_and_agree_on_damage(session.world(), "loading " + path, [&] {
    reader = is_adapter ? open_adapter(session, path) : open_directory(session, path);
    const bool is_first = session.world().rank() == 0;
    if (is_first) compare_with_manifest(path, reader->manifest());
    const ModelDirectory directory(session, *reader, is_adapter);
    quantized.emplace(session.parameters(), &session.ranks().communicator, *reader);
    if (is_first) directory.compare_tied_copies(*reader);
    loaded.content = directory.content();
    for (Descriptor& descriptor : training_tensors(session, false)) {
      Parameter& p = *session.parameters().find(descriptor.fqn);
      if (!directory.has(p)) continue;
      LoadTensor tensor = directory.load_tensor(std::move(descriptor));
      if (p.is_quantized())
        quantized->add(p, std::move(tensor), tensors);
      else
        tensors.push_back(std::move(tensor));
    }
    ProgressBar bar("loading " + path);
    LoadOptions options = load_options(session);
    options.skip = [&, ignored = directory.skip()](const std::string& name) {
      return ignored(name) || quantized->has(name);
    };
    if (hashes)
      options.hashed = [&](const Descriptor& tensor) {
        const Parameter* p = session.parameters().find(tensor.fqn);
        return p == nullptr || !is_kept(*p);  // components and their texts are frozen
      };
    if (is_first) options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
    local = quantized->local(local_tensors(session, false));
    result = reader->load(tensors, session.mesh(), buckets, local, options);
  });
  const ReadBytes read = reader->verify_parts(result, session.world());
  if (hashes) loaded.hash = reader->content_hash(result.hashed, session.world());
  share_loaded(session, tensors, result, local, buckets);
  quantized->finish(tensors, buckets);
  if (loaded.content == Content::kModel && session.adapter() != nullptr)
    session.parameters().initialize(static_cast<uint64_t>(*session.settings().run.seed), ParameterTable::Which::kAdded);
  session.refresh_parameters();
  require_finite(session.parameters(), session.world(), "the weights in " + path);
  std::string differences;
  for (const auto& [key, text] : model_differences(path, session))
    differences += (differences.empty() ? "" : "; ") + key + " " + text;
  if (!differences.empty())
    counted_warning("the model differs from that of its weights",
                    path + " was saved with another model, and this configuration's is computed: " + differences +
                        "; model.path = \"" + path + "\" computes its own");
  session.metrics().set("loaded_bytes", static_cast<double>(read.num_bytes));
  log::info("loaded {} tensors from {}: {}", tensors.size() - result.absent.size(), path, read.text());
  return loaded;
}

// Whether a directory is an adapter, and the base that it needs, as its manifest names it.
struct Kind {
  bool is_adapter = false;
  std::optional<BaseReference> base;

  bool needs_base() const { return is_adapter || base; }
};
// [all-ranks]
Kind kind_of(Session& session, const std::string& path) {
  const std::string found = find_on_rank_0(session.world(), "looking into " + path, [&] {
    const bool is_adapter = is_adapter_directory(path);
    Json kind = {{"adapter", is_adapter}};
    SourceDirectory directory(path);
    if (directory.find_file(kManifestName) >= 0)
      if (const auto base = base_reference(CheckpointManifest::read(directory).about, path)) base->add_to(kind);
    return kind.dump();
  });
  const Json kind = Json::parse(found);
  return {kind["adapter"].get<bool>(), base_reference(kind, path)};
}

// Counts a warning if what was trained on one base is used with another, or with one that is stored differently.
// Resuming a run refuses both; an adapter may be meant for it. `hash` is that of the base in use; if that hash or the
// hash of the base in training is not known, only names are compared.
void compare_base(Session& session, const std::string& path, const Kind& kind, const std::string& hash) {
  if (session.world().rank() != 0) return;
  const Setting<std::string>& model = session.settings().model.path;
  if (!kind.base || hash.empty()) {
    if (model.is_set()) compare_base_name(path, model, "model.path");
    return;
  }
  if (hash != kind.base->hash)
    counted_warning(
        "the adapter was made for another model",
        path + " was trained on " + kind.base->text() + ", and model.path is " + BaseReference{model, hash}.text());
  compare_quantization(session, path, *kind.base);
}

}  // namespace

std::string load_base(Session& session, const BucketPair& buckets, const std::string& needed_by,
                      const std::optional<BaseReference>& reference) {
  const Setting<std::string>& model = session.settings().model.path;
  const std::string was = reference ? ", which were in " + reference->path : "";
  if (!model.is_set())
    throw config_error(model, needed_by + " has no frozen weights" + was + ", and model.path is not set")
        .hint("set model.path to the model beneath it");
  if (const Kind kind = kind_of(session, model); kind.needs_base())
    throw config_error(model, "model.path = " + *model +
                                  " has only what was trained in addition to the frozen weights" +
                                  (kind.base ? " in " + kind.base->path : " of another model"))
        .hint("set model.path to that model" + (session.adapter() == nullptr ? "" : ", and adapter.path to " + *model));
  // Quantized parameters are frozen in any run.
  const bool has_frozen =
      std::ranges::any_of(session.parameters().all(), [](const auto& p) { return !is_kept(*p) && !p->is_quantized(); });
  if (reference && !has_frozen)
    throw storage_error("'" + needed_by + "' has only what was trained in addition to the frozen weights in " +
                        reference->path + ", and nothing is frozen here")
        .hint("use the configuration of that run, with its [adapter] or [freeze]");
  std::string hash;
  try {
    hash = load_part(session, model, buckets, false, true).hash;
  } catch (const RemoteError&) {
    throw;
  } catch (const Error& cause) {
    if (cause.code() != ExitCode::kStorage) throw;
    // Not damage of the checkpoint: an older one needs the same base.
    throw Error(cause.code(), model.where(),
                needed_by + " needs the frozen weights of its model" + was +
                    ": they cannot be read from model.path = " + *model)
        .caused_by(cause)
        .hint("set model.path to where they are now");
  }
  if (reference && reference->hash != hash)
    throw config_error(model, "model.path = " + BaseReference{model, hash}.text() + " is not the model on which " +
                                  needed_by + " was trained, " + reference->text())
        .hint("restore it, or set model.path to where it is now");
  return hash;
}

namespace {

std::string load_weights(Session& session, const std::string& path, const Kind& kind, const BucketPair& buckets) {
  const Setting<std::string>& adapter = session.settings().adapter.path;
  std::string hash;
  if (kind.is_adapter && session.adapter() == nullptr)
    throw storage_error("'" + path + "' holds an adapter, and the configuration has none")
        .hint("set adapter.path to it, and model.path to the model beneath it");
  if (kind.needs_base()) {
    hash = load_base(session, buckets, path, kind.is_adapter ? std::nullopt : kind.base);
    compare_base(session, path, kind, hash);
  }
  const bool may_be_base = !kind.needs_base();
  const LoadedPart loaded =
      load_part(session, path, buckets, kind.is_adapter, may_be_base && saved_parameters(session) == Which::kKept);
  if (may_be_base) hash = loaded.hash;
  if (loaded.content == Content::kModel && adapter.is_set()) load_adapter(session, adapter, buckets, hash);
  return hash;
}

}  // namespace

std::string load_weights(Session& session, const std::string& path, const BucketPair& buckets) {
  return load_weights(session, path, kind_of(session, path), buckets);
}

void load_adapter(Session& session, const std::string& path, const BucketPair& buckets, const std::string& base_hash) {
  const Kind kind = kind_of(session, path);
  compare_base(session, path, kind, base_hash);
  if (!kind.needs_base())
    throw storage_error("'" + path + "' has " + kAdapterConfigName +
                        ", but is neither an adapter in PEFT's files nor a checkpoint of trained parameters");
  load_part(session, path, buckets, kind.is_adapter, false);
}

std::string load_weights(Session& session, const std::string& given) {
  const Settings& settings = session.settings();
  const std::string from = run_of(given);
  const BucketPair buckets(bucket_bytes(session));
  const bool from_run = is_run_directory(from);
  const auto load = [&](const std::string& path) { load_weights(session, path, buckets); };
  if (!from.empty() && !from_run) {
    const Kind kind = kind_of(session, from);
    load_weights(session, from, kind, buckets);
    if (session.quant() != nullptr && !kind.needs_base() && session.world().rank() == 0 && !has_quantized_weights(from))
      counted_warning("weights quantized on load", from +
                                                       " is not quantized, and [quant] stores its weights in fewer "
                                                       "bits here; quant={} uses them as they are");
    return from;
  }
  const std::string root = (from_run ? from : *settings.run.output_dir) + "/checkpoints";
  if (const std::optional<CheckpointInfo> found = load_best(session.world(), root, load)) return found->path;
  if (from_run) throw no_checkpoint(from);
  if (const auto& model = settings.model.path; model.is_set()) {
    const std::string text = root + " has no checkpoint: the weights are those of model.path = " + *model;
    if (settings.run.output_dir.by_user() || session.adapter() != nullptr)
      counted_warning("no checkpoint of the run", text);
    else
      log::info("{}", text);
    return load(model), *model;
  }
  throw storage_error("there are no weights: " + root + " has no checkpoint")
      .hint("train first, or give --from with a checkpoint or model directory");
}

SaveResult export_checkpoint(const ExportRequest& request) {
  const std::string adapter = request.checkpoint + "/" + kAdapterConfigName;
  const bool with_adapter = path_kind(adapter) != PathKind::kAbsent;
  if (!with_adapter) refuse_adapter_format(request.format);
  std::vector<std::string> overrides = {"model.path=" + request.checkpoint, "model.init=random", "run.device=cpu",
                                        "export.dtype=" + request.dtype};
  if (with_adapter)
    overrides.insert(overrides.end(),
                     {"adapter.plugin=" + adapter_plugin_of(request.checkpoint), "adapter.path=" + request.checkpoint});
  if (!request.format.empty()) overrides.push_back("export.plugin=" + request.format);
  const bool is_quantized = has_quantized_weights(request.checkpoint);
  if (is_quantized) overrides.push_back("quant.plugin=" + quant_plugin(request.quant, request.plugin_path));
  Session session(load_config_text("schema_version = 1\n", "ckpt export", overrides, ConfigUse::kWeights),
                  {.plugin_path = request.plugin_path, .target = {.without_device = true}});
  const OutputDirectory place(request.directory, {request.checkpoint, request.base}, false);
  compare_with_manifest(request.base);
  const auto opened = open_directory(session, request.checkpoint);
  compare_with_manifest(request.checkpoint, opened->manifest());
  CheckpointReader& reader = *opened;
  const ModelDirectory directory(session, reader);
  directory.compare_tied_copies(reader);
  if (!with_adapter && directory.content() == Content::kTrained)
    throw storage_error("'" + request.checkpoint + "' holds only trained parameters")
        .hint("`chassis ckpt merge " + request.checkpoint + " --out DIR` adds them to the others");
  const BucketPair buckets(bucket_bytes(session));
  std::optional<QuantizedWeights> quantized;
  if (is_quantized) quantized.emplace(session, reader, directory);
  std::vector<LoadTensor> wanted;
  for (const auto& p : session.parameters().all())
    if (directory.has(*p) && p->is_quantized())
      quantized->add_wanted(*p, wanted);
    else if (directory.has(*p))
      wanted.push_back(directory.load_tensor(p->descriptor));
  LoadOptions options;
  options.skip = [&, ignored = directory.skip()](const std::string& name) {
    return ignored(name) || (quantized && quantized->is_wanted(name));
  };
  reader.check(wanted, options);

  const auto instance = slot_format(session, session.settings().exports);
  const FormatPlugin format(*instance);
  SaveRequest save;
  save.parent = place.parent();
  save.name = place.name();
  save.mode = shared_file_mode(request.checkpoint);
  save.step = reader.manifest() ? reader.manifest()->step : 0;
  if (with_adapter && reader.manifest())
    if (const auto base = base_reference(reader.manifest()->about, request.checkpoint)) base->add_to(save.about);
  const std::map<std::string, std::string> tied = tied_slots(session.program());
  const auto parts = [&](const Descriptor& tensor) {
    const auto owner = tied.find(tensor.fqn);
    return directory.parts(owner == tied.end() ? tensor : session.parameters().find(owner->second)->descriptor);
  };
  const SavePlan plan = plan_export(session, format, quantized ? &*quantized : nullptr);
  save.source = [&, parameters = reader.source(parts, true), literals = from_tensors(exported_tensors(session)),
                 components = quantized ? quantized->source() : PartSource()](
                    const SavePlan& whole, const SavePart& part, const ReserveBytes& room) {
    const Descriptor& tensor = whole.tensors[part.tensor].descriptor;
    const bool is_literal = session.disk_mapping().literals().contains(tensor.fqn);
    (quantized && quantized->has(tensor) ? components : is_literal ? literals : parameters)(whole, part, room);
  };
  save.text_files = {with_adapter
                         ? std::pair<std::string, std::string>(kAdapterConfigName, read_file(adapter))
                         : std::pair<std::string, std::string>("config.json", export_config(session, is_quantized))};
  save.carried_files = files_to_copy(request.base.empty() ? request.checkpoint : request.base, {"config.json"});
  ProgressBar bar("writing " + request.directory);
  save.progress = [&bar](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
  SaveResult saved = CheckpointWriter(format, buckets).save(plan, save);
  place.log_replaced();
  return saved;
}

}  // namespace chassis
