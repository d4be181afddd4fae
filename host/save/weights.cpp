// Decides which directories hold the weights of a session: a model, what was trained on it, an adapter.
#include "host/save/weights.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/progress.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/save/load.hpp"
#include "host/save/opened_model.hpp"
#include "host/save/quantize.hpp"
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

std::optional<CheckpointInfo> load_best(World& world, const std::string& root,
                                        const std::function<void(const std::string& path)>& load,
                                        const SkipCallback& on_skipped) {
  return use_first_intact(
      root, candidates(world, root), [&](const CheckpointInfo& found) { load(found.path); },
      [&](const CheckpointInfo& found, const std::string& why) {
        if (world.rank() == 0) on_skipped(found, why);
      });
}

std::string find_on_rank_0(World& world, const std::string& what, const std::function<std::string()>& find) {
  std::string found;
  world.run_and_agree(what, [&] {
    if (world.rank() == 0) found = find();
  });
  return world.exchange(what, found)[0];
}

namespace {

// Those of the parameters `all` that a directory has, and where.
LoadSource parameters_in(const OpenedModel& opened, std::vector<Descriptor> all, const Session& session) {
  LoadSource source{.reader = opened.reader(), .tensors = {}};
  for (Descriptor& descriptor : all)
    if (opened.directory().has(*session.parameters().find(descriptor.fqn)))
      source.tensors.push_back(opened.directory().load_tensor(std::move(descriptor)));
  source.options.skip = opened.directory().skip();
  source.options.optional = [&](const Descriptor& tensor) { return opened.may_be_absent(tensor); };
  return source;
}

// Counts a warning if the weights were saved with another model than the one that this configuration computes.
void compare_model(const Session& session, const std::string& path) {
  std::string differences;
  for (const auto& [key, text] : model_differences(path, session))
    differences += (differences.empty() ? "" : "; ") + key + " " + text;
  if (!differences.empty())
    counted_warning("the model differs from that of its weights",
                    path + " was saved with another model, and this configuration's is computed: " + differences +
                        "; model.path = \"" + path + "\" computes its own");
}

struct LoadedPart {
  Content content = Content::kModel;
  std::string hash;         // hash of the frozen parameters, if requested
  bool lacks_head = false;  // it has no head of scores, which the objective added
};

// [all-ranks] Fills the parameters that one directory has. If that is a model, those of an adapter and a head that it
// lacks get new values.
LoadedPart load_part(Session& session, const std::string& path, const BucketPair& buckets, bool is_adapter,
                     bool hashes) {
  const bool is_first = session.world().rank() == 0;
  std::optional<OpenedModel> opened;
  std::optional<LoadSource> source;
  open_on_all_ranks(session.world(), path, [&] {
    opened.emplace(session, path, is_adapter, is_first ? OpenChecks::kAll : OpenChecks::kNone);
    source.emplace(parameters_in(*opened, training_tensors(session, false), session));
  });
  if (hashes)
    source->options.hashed = [&](const Descriptor& tensor) {
      const Parameter* p = session.parameters().find(tensor.fqn);
      return p == nullptr || !is_kept(*p);  // components and their texts are frozen
    };
  Loaded loaded;
  {
    ProgressBar bar("loading " + path);
    if (is_first) source->options.progress = [&](uint64_t done, uint64_t total) { bar.update(done, total, "weights"); };
    loaded = load_into(LoadState::of(session, local_tensors(session, false), buckets), *source);
  }
  const ModelDirectory& directory = opened->directory();
  const Content content = directory.content();
  const auto is_new = [&](const Parameter& p) {
    return p.of_objective && (!directory.has(p) || std::ranges::count(loaded.result.absent, p.name) > 0);
  };
  const bool lacks_head = std::ranges::any_of(session.parameters().all(), [&](const auto& p) { return is_new(*p); });
  const bool adds = content == Content::kModel && session.adapter() != nullptr;
  if (adds || (lacks_head && (content == Content::kModel || content == Content::kAll)))
    session.parameters().initialize(static_cast<uint64_t>(*session.settings().run.seed),
                                    [&](const Parameter& p) { return is_new(p) || (adds && p.added); });
  session.refresh_parameters();
  require_finite(session.parameters(), session.world(), "the weights in " + path);
  compare_model(session, path);
  session.metrics().set("loaded_bytes", static_cast<double>(loaded.read.num_bytes));
  log::info("loaded {} tensors from {}: {}", loaded.num_tensors, path, loaded.read.text());
  for (const std::string& name : directory.left_out())
    if (is_first) log::info("{} of {} is left out: scores need no head over the vocabulary", printable(name), path);
  return {content, loaded.hash, lacks_head};
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

// Throws a config error if model.path, which is of this kind, needs another model itself.
void require_base(Session& session, const Kind& kind) {
  if (!kind.needs_base()) return;
  const Setting<std::string>& model = session.settings().model.path;
  throw config_error(model, "model.path = " + *model + " has only what was trained in addition to the frozen weights" +
                                (kind.base ? " in " + kind.base->path : " of another model"))
      .hint("set model.path to that model" + (session.adapter() == nullptr ? "" : ", and adapter.path to " + *model));
}

// Throws a storage error if a directory of this kind is an adapter, and the session has none.
void require_adapter_for(const Session& session, const std::string& path, const Kind& kind) {
  if (kind.is_adapter && session.adapter() == nullptr)
    throw storage_error("'" + path + "' holds an adapter, and the configuration has none")
        .hint("set adapter.path to it, and model.path to its base model");
}

void compare_base_hash(const std::string& path, const BaseReference& trained_on, const BaseReference& now,
                       const std::string& given_as) {
  if (now.hash != trained_on.hash)
    counted_warning("the adapter was made for another model",
                    path + " was trained on " + trained_on.text() + ", and " + given_as + " is " + now.text());
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
  compare_base_hash(path, *kind.base, BaseReference{model, hash}, "model.path");
  compare_quantization(session, path, *kind.base);
}

LoadedPart load_base_part(Session& session, const BucketPair& buckets, const std::string& needed_by,
                          const std::optional<BaseReference>& reference) {
  const Setting<std::string>& model = session.settings().model.path;
  const std::string was = reference ? ", which were in " + reference->path : "";
  if (!model.is_set())
    throw config_error(model, needed_by + " has no frozen weights" + was + ", and model.path is not set")
        .hint("set model.path to its base model");
  require_base(session, kind_of(session, model));
  // Quantized parameters are frozen in any run.
  const bool has_frozen =
      std::ranges::any_of(session.parameters().all(), [](const auto& p) { return !is_kept(*p) && !p->is_quantized(); });
  if (reference && !has_frozen)
    throw storage_error("'" + needed_by + "' has only what was trained in addition to the frozen weights in " +
                        reference->path + ", and nothing is frozen here")
        .hint("use the configuration of that run, with its [adapter] or [freeze]");
  LoadedPart loaded;
  try {
    loaded = load_part(session, model, buckets, false, true);
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
  if (reference && reference->hash != loaded.hash)
    throw config_error(model, "model.path = " + BaseReference{model, loaded.hash}.text() +
                                  " is not the model on which " + needed_by + " was trained, " + reference->text())
        .hint("restore it, or set model.path to where it is now");
  return loaded;
}

// [all-ranks] Throws a storage error if the directory has weights of a whole model.
Kind kind_of_adapter(Session& session, const std::string& path) {
  Kind kind = kind_of(session, path);
  if (!kind.needs_base())
    throw storage_error("'" + path + "' has " + kAdapterConfigName +
                        ", but is neither an adapter in PEFT's format nor a checkpoint of trained parameters");
  return kind;
}

// [all-ranks]
LoadedPart load_adapter_part(Session& session, const std::string& path, const BucketPair& buckets,
                             const std::string& base_hash) {
  const Kind kind = kind_of_adapter(session, path);
  compare_base(session, path, kind, base_hash);
  return load_part(session, path, buckets, kind.is_adapter, false);
}

// Says that training begins with a new head. Throws a storage error for a use that does not train it.
void report_new_head(Session& session, const std::string& path) {
  const Parameter& head = *session.parameters().find(kScoreWeight);
  const std::string what = head.name + " " + text(head.descriptor.global_shape);
  if (session.config().use() != ConfigUse::kTraining)
    throw storage_error("'" + path + "' has no head of scores (" + what + "), so its scores would be random")
        .hint("give a run, a checkpoint or an export that was trained with train.task = \"reward\" or \"classify\"");
  if (session.world().rank() == 0)
    log::info("{} has no head of scores: {} begins with random values (run.seed)", path, what);
}

}  // namespace

std::string load_base(Session& session, const BucketPair& buckets, const std::string& needed_by,
                      const std::optional<BaseReference>& reference) {
  return load_base_part(session, buckets, needed_by, reference).hash;
}

void load_adapter_on(Session& session, const std::string& path, const LoadedWeights& base) {
  const Kind kind = kind_of_adapter(session, path);
  if (session.world().rank() == 0) {
    // Adapters over a run name its export, which has the newest weights under other names.
    const std::filesystem::path folder = std::filesystem::path(base.directory).lexically_normal().parent_path();
    const bool is_of_run = folder.filename() == "checkpoints";
    // The hash is that of all weights; an adapter that trains some of them has that of the others.
    const bool freezes_base =
        std::ranges::all_of(session.parameters().all(), [](const auto& p) { return p->added || !p->trainable; });
    if (kind.base && !base.hash.empty() && freezes_base && !is_of_run)
      compare_base_hash(path, *kind.base, {base.directory, base.hash}, "the base");
    else
      compare_base_name(path, is_of_run ? (folder.parent_path() / "final").string() : base.directory, "the base");
    if (kind.base) compare_quantization(session, path, *kind.base);
  }
  load_part(session, path, BucketPair(bucket_bytes(session)), kind.is_adapter, false);
}

namespace {

// Throws if the weights of a directory do not fit the parameters.
void check_directory(Session& session, const std::string& path, bool is_adapter) {
  const OpenedModel opened(session, path, is_adapter, OpenChecks::kFacts);
  std::vector<Descriptor> all;
  for (const auto& p : session.parameters().all()) all.push_back(p->descriptor);
  expect_fit(session.parameters(), parameters_in(opened, std::move(all), session));
}

}  // namespace

void check_adapter(Session& session, const std::string& path) {
  check_directory(session, path, kind_of_adapter(session, path).is_adapter);
}

namespace {

std::string load_weights(Session& session, const std::string& path, const Kind& kind, const BucketPair& buckets) {
  const Setting<std::string>& adapter = session.settings().adapter.path;
  std::string hash;
  bool lacks_head = true;
  require_adapter_for(session, path, kind);
  if (kind.base && session.freezes_all())
    throw config_error("'" + path + "' has only what was trained in addition to the frozen weights in " +
                       kind.base->path + ", and adapters share a model with all of its weights")
        .hint("chassis ckpt export " + path + " DIR writes such a model");
  if (kind.needs_base()) {
    const LoadedPart base = load_base_part(session, buckets, path, kind.is_adapter ? std::nullopt : kind.base);
    hash = base.hash, lacks_head = base.lacks_head;
    compare_base(session, path, kind, hash);
  }
  const bool may_be_base = !kind.needs_base();
  const LoadedPart loaded =
      load_part(session, path, buckets, kind.is_adapter,
                may_be_base && (saved_parameters(session) == Which::kKept || session.freezes_all()));
  if (may_be_base) hash = loaded.hash;
  lacks_head = lacks_head && loaded.lacks_head;
  if (loaded.content == Content::kModel && adapter.is_set())
    lacks_head = load_adapter_part(session, adapter, buckets, hash).lacks_head && lacks_head;
  if (lacks_head) report_new_head(session, path);
  return hash;
}

}  // namespace

std::string load_weights(Session& session, const std::string& path, const BucketPair& buckets) {
  return load_weights(session, path, kind_of(session, path), buckets);
}

void load_adapter(Session& session, const std::string& path, const BucketPair& buckets, const std::string& base_hash) {
  load_adapter_part(session, path, buckets, base_hash);
}

LoadedWeights load_weights(Session& session, const std::string& given) {
  const Settings& settings = session.settings();
  const std::string from = run_of(given);
  const BucketPair buckets(bucket_bytes(session));
  const bool from_run = is_run_directory(from);
  std::string hash;
  const auto load = [&](const std::string& path) { hash = load_weights(session, path, buckets); };
  if (!from.empty() && !from_run) {
    const Kind kind = kind_of(session, from);
    hash = load_weights(session, from, kind, buckets);
    if (session.quant() != nullptr && !kind.needs_base() && session.world().rank() == 0 && !has_quantized_weights(from))
      counted_warning("weights quantized on load", from +
                                                       " is not quantized, and [quant] stores its weights in fewer "
                                                       "bits here; quant={} uses them as they are");
    return {from, hash};
  }
  const std::string root = (from_run ? from : *settings.run.output_dir) + "/checkpoints";
  if (const std::optional<CheckpointInfo> found = load_best(session.world(), root, load)) return {found->path, hash};
  if (from_run) throw no_checkpoint(from);
  if (const auto& model = settings.model.path; model.is_set()) {
    const std::string text = root + " has no checkpoint: the weights are those of model.path = " + *model;
    if (settings.run.output_dir.by_user() || session.adapter() != nullptr)
      counted_warning("no checkpoint of the run", text);
    else
      log::info("{}", text);
    load(model);
    return {*model, hash};
  }
  throw storage_error("there are no weights: " + root + " has no checkpoint")
      .hint("train first, or give --from with a checkpoint or model directory");
}

std::string load_start_weights(Session& session, const BucketPair& buckets) {
  const Settings& settings = session.settings();
  if (settings.model.path.is_set() && settings.model.init == ModelInit::kPretrained)
    return load_weights(session, *settings.model.path, buckets);
  session.parameters().initialize(static_cast<uint64_t>(*settings.run.seed));
  session.refresh_parameters();
  if (const auto& adapter = settings.adapter.path; adapter.is_set()) load_adapter(session, adapter, buckets, "");
  return "";
}

void load_reference_weights(Session& session) {
  const BucketPair buckets(bucket_bytes(session));
  if (const Setting<std::string>& path = session.settings().reference.path; path.is_set())
    load_weights(session, *path, buckets);
  else
    load_start_weights(session, buckets);
}

void check_weights(Session& session) {
  const Settings::Model& model = session.settings().model;
  if (!model.path.is_set() || model.init != ModelInit::kPretrained) return;
  const Kind kind = kind_of(session, model.path);
  require_adapter_for(session, model.path, kind);
  require_base(session, kind);
  check_directory(session, model.path, false);
}

void check_reference_weights(Session& session) {
  const Setting<std::string>& path = session.settings().reference.path;
  if (!path.is_set()) return;
  try {
    if (path_kind(path) != PathKind::kDirectory) throw storage_error("there is no such folder");
    const Kind kind = kind_of(session, path);
    require_adapter_for(session, path, kind);
    check_directory(session, path, kind.is_adapter);
  } catch (const Error& cause) {
    throw Error(cause.code(), path.where(), "reference.path = " + *path + " has no weights for this model")
        .caused_by(cause)
        .hint(cause.hint_text().empty() ? "give a model of the same architecture and shapes, or leave out the key"
                                        : cause.hint_text());
  }
}

}  // namespace chassis
