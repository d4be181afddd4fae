// Saves, resumes, exports and self-tests a run on all ranks.
#include "host/save/saver.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/checksum.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/plan_agreement.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/save/component_load.hpp"
#include "host/save/merge.hpp"
#include "host/save/quantized_load.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/weights.hpp"
#include "host/service/memory.hpp"
#include "host/session/finite.hpp"
#include "host/session/run_tokenizer.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

constexpr int64_t kSelfTestBytes = 16 << 20;

// The files that exports and checkpoints contain in addition to the weights: those of model.path, except that tokenizer
// files come from the directory of this run's tokenizer. config.json is written anew.
std::vector<CopiedFile> files_carried(Session& session, const ChatFiles& chat) {
  const Setting<std::string>& model = session.settings().model.path;
  const PluginTokenizer* const tokenizer = session.tokenizer();
  const std::string directory = tokenizer ? tokenizer->directory() : "";
  const std::vector<std::string> other = other_tokenizer_files(session.config(), tokenizer);
  if (!other.empty() && directory.empty())
    log::counted_warning("export without tokenizer", "the export leaves out the tokenizer of " + *model + " (" +
                                                         other.front() + " …): this run used tokenizer '" +
                                                         tokenizer->id() + "'");
  std::vector<CopiedFile> files;
  std::set<std::string> left_out = chat.left_out;
  if (model.is_set()) {
    left_out.insert(other.begin(), other.end());
    left_out.insert("config.json");
    files = files_to_copy(model, left_out);
  }
  if (directory.empty()) return files;
  std::set<std::string> names = chat.left_out;
  for (const CopiedFile& file : files) names.insert(file.name);
  const std::vector<std::string> stops = {"generation_config.json"};
  for (const std::vector<std::string>& more : {tokenizer_files(directory), tokenizer->files(), stops})
    for (const std::string& name : more)
      if (path_kind(directory + "/" + name) != PathKind::kAbsent && names.insert(name).second)
        files.push_back(copied_file(directory, name));
  return files;
}

bool has_frozen(const Session& session) {
  return std::ranges::any_of(session.parameters().all(), [](const auto& p) { return !is_kept(*p); });
}

// The checksum of the frozen parameters that this rank stores.
uint32_t checksum_of_frozen(const Session& session) {
  uint32_t crc = 0;
  for (const auto& p : session.parameters().all()) {
    if (is_kept(*p)) continue;
    for (const Tensor& stored : p->all_stored()) {
      if (stored.num_elements() == 0) continue;
      const Tensor here = stored.to(Device{}).contiguous();
      crc = crc32c(crc, here.data(), static_cast<size_t>(here.num_elements() * size_bytes(here.dtype())));
    }
  }
  return crc;
}

// The optimizer's states that have one value for each block, by FQN.
std::map<std::string_view, const OptimizerState*> states_of_blocks(Session& session) {
  std::map<std::string_view, const OptimizerState*> out;
  for (const OptimizerState& state : session.optimizer().states())
    if (state.shape == CHASSIS_STATE_PER_BLOCK) out.emplace(state.descriptor.fqn, &state);
  return out;
}

// Returns how this rank reads such a state. `descriptor` says which rank owns it.
LoadTensor load_state(const OptimizerState& state, const Descriptor& descriptor, const CheckpointReader& reader) {
  Descriptor parameter = state.parameter->descriptor;
  parameter.owner = descriptor.owner;
  parameter.owner_replica = descriptor.owner_replica;
  return load_component(reader, parameter, state.component, descriptor.fqn);
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal().string();
}

}  // namespace

void require_savable(Session& session) {
  const Settings& settings = session.settings();
  if (saved_parameters(session) == Which::kKept && has_frozen(session) &&
      !(settings.model.path.is_set() && settings.model.init == ModelInit::kPretrained))
    throw config_error(settings.checkpoint.contents,
                       "checkpoint.contents = \"trained\" leaves out frozen weights, and those of this run are random: "
                       "no file has them")
        .hint("set checkpoint.contents = \"full\"");
  if (!settings.exports.merge || session.adapter() == nullptr) return;
  if (!session.adapter()->plugin().can_merge())
    throw config_error(settings.exports.merge, "adapter '" + session.adapter()->member() + "' cannot be merged")
        .hint("leave out export.merge to export the adapter alone");
  const AdapterNames names(session);
  for (const auto& [name, module] : names.modules())
    if (module.is_tied)
      throw config_error(settings.exports.merge, tied_branch_text(name))
          .hint("leave '" + name + "' out of the adapter's targets, or export.merge to export the adapter alone");
}

Saver::Saver(Session& session, std::string directory, CheckpointRoot* root)
    : session_(session),
      directory_(std::move(directory)),
      checkpoint_instance_(slot_format(session, session.settings().checkpoint)),
      export_instance_(slot_format(session, session.settings().exports)),
      checkpoint_format_(*checkpoint_instance_),
      export_format_(*export_instance_),
      buckets_(bucket_bytes(session)),
      root_(root) {
  session.world().run_and_agree("opening " + checkpoints(), [&] {
    const bool is_first = session.world().rank() == 0;
    if (is_first && !root_) root_ = &own_root_.emplace(checkpoints());
    if (const Setting<std::string>& model = session.settings().model.path; is_first && model.is_set()) {
      mode_ = shared_file_mode(model);
    }
    if (is_first) {
      const PluginTokenizer* const tokenizer = session.tokenizer();
      chat_files_ = chat_files(session, tokenizer ? tokenizer->directory() : "");
      carried_files_ = files_carried(session, chat_files_);
    }
    require_savable(session);
    checkpoint_plan();
    export_plan();
    if (!is_first) return;
    compare_with_model(session, export_plan());
    if (!saves_states(session))
      log::counted_warning("not resumable",
                           "checkpoint.contents = \"model_only\": checkpoints of this run cannot be resumed");
  });
  checkpoint_bytes_ = agree_on_plan(checkpoint_plan(), "what this run saves", session.world());
  agree_on_plan(export_plan(), "what this run exports", session.world());
}

// Each rank plans what it writes, and proves its share of the tensors; they vote on the result.
SavePlanOptions Saver::plan_options() const {
  return {.rank = session_.rank(), .prover = {session_.world().rank(), session_.world().size()}};
}

const SavePlan& Saver::checkpoint_plan() {
  if (!checkpoint_plan_) checkpoint_plan_ = plan_checkpoint(session_, checkpoint_format_, plan_options());
  return *checkpoint_plan_;
}

const SavePlan& Saver::export_plan() {
  if (!export_plan_) export_plan_ = plan_export(session_, export_format_, nullptr, plan_options());
  return *export_plan_;
}

void Saver::start_from(const std::string& model) {
  const std::string hash = load_weights(session_, model, buckets_);
  if (!hash.empty()) base_ = reference_to_base(hash);
}

BaseReference Saver::reference_to_base(const std::string& hash) const {
  return chassis::reference_to_base(session_, absolute_path(session_.settings().model.path), hash);
}

void Saver::self_test() {
  std::vector<Descriptor> small = training_tensors(session_, saves_states(session_), saved_parameters(session_));
  const auto bytes = [](const Descriptor& d) { return numel(d.global_shape) * size_bytes(d.dtype); };
  std::stable_sort(small.begin(), small.end(),
                   [&](const Descriptor& a, const Descriptor& b) { return bytes(a) < bytes(b); });
  int64_t room = kSelfTestBytes;
  size_t count = 0;
  while (count < small.size() && (count == 0 || bytes(small[count]) <= room)) room -= bytes(small[count++]);
  small.resize(count);

  std::vector<SaveTensor> tensors;
  for (const Descriptor& descriptor : small) tensors.push_back(SaveTensor::plain(descriptor));
  const SavePlan plan = plan_save(std::move(tensors), session_.mesh(), checkpoint_format_, {.rank = session_.rank()});
  SaveRequest request;
  request.parent = directory_;
  request.name = "self-test";
  request.tensors = local_tensors(session_, saves_states(session_));
  const SaveResult saved = CheckpointWriter(checkpoint_format_, buckets_).save(plan, request, session_.world());
  session_.world().run_and_agree("self-test", [&] { compare_with_saved(saved.path, small); });
  session_.world().run_and_agree("self-test is over", [&] {
    if (root_) delete_checkpoint(saved.path);
  });
  log::info("self-test: {} of {} tensors, {}, were saved and came back bit for bit", count,
            checkpoint_plan().tensors.size(), bytes_text(saved.num_bytes));
}

// Compares this rank's part of the saved tensors.
void Saver::compare_with_saved(const std::string& path, const std::vector<Descriptor>& tensors) {
  const LocalTensors run = local_tensors(session_, true);
  std::map<std::string, Tensor> read;
  std::vector<LoadTensor> wanted;
  for (const Descriptor& descriptor : tensors) {
    wanted.push_back({descriptor, ""});
    read[descriptor.fqn] = Tensor::zeros(run(descriptor, session_.rank()).sizes(), descriptor.dtype);
  }
  LoadOptions options;
  options.rank = session_.rank();
  const auto local = [&](const Descriptor& tensor, int) { return read.at(tensor.fqn); };
  CheckpointReader(path, checkpoint_format_).load(wanted, session_.mesh(), buckets_, local, options);
  for (const Descriptor& descriptor : tensors) {
    const Tensor here = run(descriptor, session_.rank()).to(Device{}), there = read.at(descriptor.fqn);
    const int64_t size = size_bytes(descriptor.dtype);
    for (const Piece& piece : Layout(descriptor, session_.mesh()).pieces(session_.rank()))
      for_each_run({piece.box, piece.local, piece.local}, [&](int64_t from, int64_t, int64_t length) {
        if (std::memcmp(here.data_as<char>() + from * size, there.data_as<char>() + from * size,
                        static_cast<size_t>(length * size)) != 0)
          throw storage_error("the self-test saved '" + descriptor.fqn + "', but read other bytes from " + path)
              .hint("check the disk; if it has no errors, format '" + checkpoint_format_.name() + "' is defective");
      });
  }
}

void Saver::begin(int64_t step, const Json& state) {
  CHASSIS_CHECK(!save_, "one save at a time");
  const Settings::Checkpoint& settings = session_.settings().checkpoint;
  const SavePlan& plan = checkpoint_plan();
  const AsyncSave async = settings.async;
  SaveRequest request;
  request.parent = checkpoints();
  request.name = step_directory_name(step);
  request.step = step;
  request.resumable = saves_states(session_);
  request.state = state;
  request.about = {{"model", session_.model().member()},
                   {"names", kParameterNames},
                   {"plugins", plugins_lock(session_.plugins().registry(), session_.compiled())}};
  if (saved_parameters(session_) == Which::kKept && has_frozen(session_)) {
    CHASSIS_CHECK(base_.has_value(), "frozen parameters were loaded from a directory");
    base_->add_to(request.about);
  }
  request.tensors = async == AsyncSave::kStaged ? staged_tensors(plan) : local_tensors(session_, request.resumable);
  const bool has_components = session_.quant() != nullptr && saved_parameters(session_) == Which::kAll;
  request.text_files = {{"config.json", checkpoint_config(session_, has_components)},
                        {"resolved.toml", session_.config().resolved_toml()}};
  if (session_.adapter() != nullptr) request.text_files.emplace_back(kAdapterConfigName, adapter_config(session_));
  carry_files_of_model(request);
  request.on_published = [this, name = request.name, keep_last = *settings.keep_last, keep_every = *settings.keep_every,
                          is_best = step == best_step_] {
    root_->set_latest(name);
    if (is_best) root_->set_best(name);
    root_->prune(keep_last, keep_every);
  };
  save_ = std::make_unique<Save>(checkpoint_format_, buckets_, plan, std::move(request), session_.world(),
                                 async == AsyncSave::kOff ? Save::Where::kHere : Save::Where::kOnAThread);
}

// Copies the tensors that this rank writes to host memory.
LocalTensors Saver::staged_tensors(const SavePlan& plan) {
  const LocalTensors local = local_tensors(session_, saves_states(session_));
  const int rank = session_.rank();
  const MemoryTag tag(MemoryCategory::kCheckpoint);
  auto copies = std::make_shared<std::map<std::string, Tensor>>();
  for (const SavePart& part : plan.parts) {
    const Descriptor& descriptor = plan.tensors[part.tensor].descriptor;
    if (part.rank != rank || copies->contains(descriptor.fqn)) continue;
    const Tensor tensor = local(descriptor, rank);
    (*copies)[descriptor.fqn] = tensor.device().type == Device::Type::kCpu ? tensor.clone() : tensor.to(Device{});
  }
  return [copies](const Descriptor& tensor, int) { return copies->at(tensor.fqn); };
}

void Saver::await_tensors() {
  if (save_ && session_.settings().checkpoint.async != AsyncSave::kStaged) save_->await_tensors();
}

std::optional<SaveResult> Saver::advance() {
  std::unique_ptr<Save> save = std::move(save_);
  if (save->advance()) return save->result();
  save_ = std::move(save);
  return std::nullopt;
}

SaveResult Saver::finish() {
  const std::unique_ptr<Save> save = std::move(save_);
  return save->finish();
}

std::optional<Saver::Resumed> Saver::resume() {
  const ResumeFrom& wanted = session_.settings().run.resume;
  if (wanted == Resume::kNever) return std::nullopt;
  if (!wanted.word) {
    const std::string given = run_of(wanted.text);
    return load_checkpoint(is_run_directory(given) ? newest_of(given) : given);
  }
  std::optional<Resumed> resumed;
  std::vector<std::string> passed;
  const auto used = load_best(
      session_.world(), checkpoints(), [&](const std::string& path) { resumed = load_checkpoint(path); },
      [&](const CheckpointInfo& checkpoint, const std::string& why) {
        warn_skipped_checkpoint(checkpoint, why);
        passed.push_back(checkpoint.name);
      });
  if (used) set_aside_damaged(passed, used->name);
  return resumed;
}

// The newest checkpoint of a run, which may be this one. Loading it shows whether it is intact.
std::string Saver::newest_of(const std::string& run) const {
  return find_on_rank_0(session_.world(), "finding checkpoints", [&] {
    const auto newest = newest_checkpoint(run + "/checkpoints");
    if (!newest) throw no_checkpoint(run);
    return newest->path;
  });
}

// Renames the damaged checkpoints that were skipped, since the run will save these steps again.
void Saver::set_aside_damaged(const std::vector<std::string>& passed, const std::string& used) {
  session_.world().run_and_agree("setting damaged checkpoints aside", [&] {
    if (!root_ || passed.empty()) return;
    for (const std::string& name : passed)
      if (const std::string aside = root_->set_aside(name); !aside.empty())
        log::warn("{}/{} is kept as {}; delete it when you no longer need it", root_->path(), name, aside);
    root_->set_latest(used);
  });
}

Saver::Resumed Saver::load_checkpoint(const std::string& path) {
  LocalTensors local;
  std::unique_ptr<CheckpointReader> reader;
  LoadResult result;
  expect_same_files(session_.world(), path);
  run_and_agree_on_damage(session_.world(), "loading " + path, [&] {
    reader = open_checkpoint(path);
    if (session_.world().rank() == 0) {
      compare_with_manifest(path, reader->manifest());
      require_same_optimizer(path, session_.settings().optimizer.plugin);
    }
  });
  const std::optional<BaseReference> reference = base_reference(reader->manifest()->about, path);
  const bool refers = saved_parameters(session_) == Which::kKept && has_frozen(session_);
  if (reference || refers) load_frozen(path, reference);
  const uint32_t frozen = refers ? checksum_of_frozen(session_) : 0;
  std::vector<LoadTensor> tensors;
  QuantizedLoad quantized(session_.parameters(), &session_.ranks().communicator, *reader);
  run_and_agree_on_damage(session_.world(), "loading " + path, [&] {
    refuse_components(session_, *reader, [](const Parameter& p) { return p.name; });
    const auto of_blocks = states_of_blocks(session_);
    for (Descriptor& descriptor : training_tensors(session_, true, reference ? Which::kKept : Which::kAll)) {
      Parameter* const p = session_.parameters().find(descriptor.fqn);
      if (p != nullptr && p->is_quantized())
        quantized.add(*p, {std::move(descriptor), ""}, tensors);
      else if (const auto state = of_blocks.find(descriptor.fqn); state != of_blocks.end())
        tensors.push_back(load_state(*state->second, descriptor, *reader));
      else
        tensors.push_back({std::move(descriptor), ""});
    }
    local = quantized.local(local_tensors(session_, true));
    try {
      result = reader->load(tensors, session_.mesh(), buckets_, local, load_options(session_));
    } catch (Misfit& misfit) {
      std::string other;
      for (const ResumeDifference& d : settings_that_differ(path, "optimizer", session_.config()))
        other += (other.empty() ? "" : "; ") + d.key + " " + d.text;
      if (!other.empty()) misfit.hint("states of the optimizer depend on its options: " + other);
      throw;
    }
  });
  log::info("read {}: {}", path, reader->verify_parts(result, session_.world()).text());
  share_loaded(session_, tensors, result, local, buckets_);
  quantized.finish(tensors, buckets_);
  session_.refresh_parameters();
  session_.world().run_and_agree("comparing frozen weights with " + path, [&] {
    if (!refers || checksum_of_frozen(session_) == frozen) return;
    throw config_error(session_.settings().checkpoint.contents,
                       "checkpoint.contents = \"trained\" refers to the frozen weights in model.path = " +
                           *session_.settings().model.path + ", and those in " + path + " are others")
        .hint("continue with checkpoint.contents = \"full\"");
  });
  const std::string hint = hint_to_avoid(path, reader->manifest()->step);
  require_finite(session_, "the parameters in " + path, hint);
  require_finite_states(session_, "the optimizer's states in " + path, hint);
  return {path, reader->manifest()->state};
}

void Saver::load_frozen(const std::string& checkpoint, const std::optional<BaseReference>& reference) {
  base_ = reference_to_base(load_base(session_, buckets_, checkpoint, reference));
}

// A hint for a checkpoint that is intact but whose values are not finite.
std::string Saver::hint_to_avoid(const std::string& path, int64_t step) const {
  std::string before;
  for (const CheckpointInfo& info : list_checkpoints(checkpoints()))
    if (info.step < step && info.resumable && !info.set_aside && info.defect.empty()) before = info.path;
  if (before.empty()) return "continue from a checkpoint before " + path + ", or from other weights";
  return "run.resume = \"" + before + "\" continues from an older one; a lower optimizer.lr may keep it finite";
}

std::unique_ptr<CheckpointReader> Saver::open_checkpoint(const std::string& path) {
  SourceDirectory directory(path);
  if (directory.find_file(kManifestName) < 0)
    throw storage_error(path + " is not a checkpoint: it has no " + kManifestName)
        .hint("run.resume takes a checkpoint as in checkpoints/; for weights only, set model.path");
  const CheckpointManifest manifest = CheckpointManifest::read(directory);
  const auto weights_only = [&] {
    const std::string start = session_.adapter() != nullptr && base_reference(manifest.about, path)
                                  ? "adapter.path = \"" + path + "\" with the same model.path"
                                  : "model.path = \"" + path + "\"";
    return storage_error(path + " holds only weights and cannot be resumed")
        .hint("start from it instead: " + start + ", run.resume = \"never\" and another run.output_dir");
  };
  if (!manifest.resumable) throw weights_only();
  const std::string format_name = format_of(session_, path);
  if (format_name != checkpoint_format_.name())
    throw storage_error(path + " is of format '" + format_name + "', [checkpoint] plugin is '" +
                        checkpoint_format_.name() + "'")
        .hint("set checkpoint.plugin = \"" + format_name + "\"");
  auto reader = std::make_unique<CheckpointReader>(path, checkpoint_format_);
  if (!reader->manifest() || !reader->manifest()->resumable) throw weights_only();
  return reader;
}

SaveResult Saver::export_model(const std::string& name, int64_t step) {
  SaveRequest request;
  request.parent = directory_;
  request.name = name;
  request.step = step;
  if (exports_adapter(session_)) {
    request.text_files = {{kAdapterConfigName, adapter_config(session_)}};
    if (base_) base_->add_to(request.about);
  } else {
    request.text_files = {{"config.json", export_config(session_)}};
  }
  carry_files_of_model(request);
  if (session_.adapter() != nullptr && session_.settings().exports.merge) return export_merged(request, step);
  request.tensors = exported_tensors(session_);
  return CheckpointWriter(export_format_, buckets_).save(export_plan(), request, session_.world());
}

// Rank 0 alone merges, from files: the frozen weights in memory may have been rounded.
SaveResult Saver::export_merged(SaveRequest request, int64_t step) {
  SaveResult result;
  result.path = request.parent + "/" + request.name;
  const std::string numbers = find_on_rank_0(session_.world(), "merging the adapter", [&] {
    const Setting<std::string>& model = session_.settings().model.path;
    const std::string checkpoint = checkpoints() + "/" + step_directory_name(step);
    if (!is_checkpoint(checkpoint)) throw storage_error("export.merge reads " + checkpoint + ", which does not exist");
    result = merge_weights(session_, model.is_set() ? *model : "", checkpoint, std::move(request), buckets_);
    return std::to_string(result.num_bytes) + " " + std::to_string(result.seconds);
  });
  if (session_.world().rank() != 0) std::istringstream(numbers) >> result.num_bytes >> result.seconds;
  return result;
}

// Adds tokenizer, chat template and generation_config, so that each checkpoint can be exported without model.path and
// tokenizer.path.
void Saver::carry_files_of_model(SaveRequest& request) const {
  request.text_files.insert(request.text_files.end(), chat_files_.written.begin(), chat_files_.written.end());
  request.carried_files = carried_files_;
  request.mode = mode_;
}

}  // namespace chassis
