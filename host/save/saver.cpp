// Saves, exports and self-tests a run on all ranks. resume.cpp resumes it.
#include "host/save/saver.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/plan_agreement.hpp"
#include "host/data/tokenizer_files.hpp"
#include "host/save/merge.hpp"
#include "host/save/model_directory.hpp"
#include "host/save/pad_token.hpp"
#include "host/save/weights.hpp"
#include "host/service/memory.hpp"
#include "host/session/fields.hpp"
#include "host/state/intersect.hpp"
#include "host/text/run_tokenizer.hpp"

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

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal().string();
}

// How files of this run describe its head of scores; nothing if it has none. Throws a config error if no token can pad
// its rows.
std::optional<ScoreHead> head_to_save(const Session& session, PadToken& pad) {
  std::optional<ScoreHead> head = head_of(session);
  if (!head || session.tokenizer() == nullptr) return head;
  const Settings& settings = session.settings();
  const PluginTokenizer& tokenizer = *session.tokenizer();
  const Json config = parse_json(session.model().plugin().config(), "the model's config", ExitCode::kPlugin);
  try {
    const std::vector<int32_t> sample = sample_sequence(settings, tokenizer);
    pad = choose_pad_token(tokenizer, final_ids(settings, tokenizer, sample), vocab_size(session.program()),
                           json_int_or(config, "pad_token_id", -1, "the model's config"));
    head->pad_id = pad.id;
    require_score_at_end(sample, pad.id);
  } catch (const Error& cause) {
    if (cause.code() != ExitCode::kConfig || !cause.where().file.empty()) throw;
    throw error_at(settings.tokenizer.path.is_set() ? settings.tokenizer.path : settings.model.source(), cause);
  }
  return head;
}

}  // namespace

void require_savable(Session& session) {
  const Settings& settings = session.settings();
  PadToken pad;
  head_to_save(session, pad);
  if (refers_to_base(session) && !(settings.model.path.is_set() && settings.model.init == ModelInit::kPretrained))
    throw config_error(settings.checkpoint.contents,
                       "checkpoint.contents = \"trained\" leaves out frozen weights, and those of this run are random: "
                       "no file has them")
        .hint("set checkpoint.contents = \"full\"");
  if (session.adapter() == nullptr) return;
  const bool can_merge = session.adapter()->plugin().can_merge();
  if (settings.exports.merge && !can_merge)
    throw config_error(settings.exports.merge, "adapter '" + session.adapter()->member() + "' cannot be merged")
        .hint("leave out export.merge to export the adapter alone");
  if (!can_merge) return;
  const AdapterNames names(session);
  for (const auto& [name, module] : names.modules()) {
    if (!module.is_tied) continue;
    if (settings.exports.merge)
      throw config_error(settings.exports.merge, tied_branch_text(name))
          .hint("leave '" + name + "' out of the adapter's targets, or export.merge to export the adapter alone");
    counted_warning("adapters that cannot be merged",
                    tied_branch_text(name) + "; the adapter can only be used with its base model. To merge it later, " +
                        "leave '" + name + "' out of the adapter's targets");
  }
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
  const std::string spelling = find_on_rank_0(session.world(), "looking into the files of the model",
                                              [&] { return Json(spelling_of_model(session)).dump(); });
  export_as_spelled(session, Json::parse(spelling).get<std::vector<std::string>>());
  session.world().run_and_agree("opening " + checkpoints(), [&] {
    const bool is_first = session.world().rank() == 0;
    if (is_first && !root_) root_ = &own_root_.emplace(checkpoints());
    if (const Setting<std::string>& model = session.settings().model.path; is_first && model.is_set()) {
      mode_ = shared_file_mode(model);
    }
    PadToken pad;
    head_ = head_to_save(session, pad);
    if (is_first) {
      const PluginTokenizer* const tokenizer = session.tokenizer();
      const std::string tokens = tokenizer ? tokenizer->directory() : "";
      chat_files_ = chat_files(session, tokens);
      write_pad_token(pad, tokens, chat_files_);
      if (pad.is_new)
        log::info("the tokenizer names no pad token: checkpoints and exports of this run name {} (id {})",
                  printable(pad.text), pad.id);
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

void Saver::reopen() {
  CHASSIS_CHECK(!is_saving(), "a save is in progress");
  session_.world().run_and_agree("planning the saves of the new state", [this] {
    checkpoint_plan_.reset();
    export_plan_.reset();
    checkpoint_format_.reset();
    export_format_.reset();
    checkpoint_instance_ = slot_format(session_, session_.settings().checkpoint);
    export_instance_ = slot_format(session_, session_.settings().exports);
    checkpoint_format_.emplace(*checkpoint_instance_);
    export_format_.emplace(*export_instance_);
    require_savable(session_);
    checkpoint_plan();
    export_plan();
  });
  checkpoint_bytes_ = agree_on_plan(checkpoint_plan(), "what this run saves", session_.world());
  agree_on_plan(export_plan(), "what this run exports", session_.world());
}

// Each rank plans what it writes, and proves its share of the tensors; they vote on the result.
SavePlanOptions Saver::plan_options() const {
  return {.rank = session_.rank(), .prover = {session_.world().rank(), session_.world().size()}};
}

const SavePlan& Saver::checkpoint_plan() {
  if (!checkpoint_plan_) checkpoint_plan_ = plan_checkpoint(session_, *checkpoint_format_, plan_options());
  return *checkpoint_plan_;
}

const SavePlan& Saver::export_plan() {
  if (!export_plan_) export_plan_ = plan_export(session_, *export_format_, nullptr, plan_options());
  return *export_plan_;
}

void Saver::start() { set_base(load_start_weights(session_, buckets_)); }

void Saver::start_from(const std::string& model) { set_base(load_weights(session_, model, buckets_)); }

void Saver::set_base(const std::string& hash) {
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
  const SavePlan plan = plan_save(std::move(tensors), session_.mesh(), *checkpoint_format_, {.rank = session_.rank()});
  SaveRequest request;
  request.parent = directory_;
  request.name = "self-test";
  request.tensors = local_tensors(session_, saves_states(session_));
  const SaveResult saved = CheckpointWriter(*checkpoint_format_, buckets_).save(plan, request, session_.world());
  session_.world().run_and_agree("self-test", [&] { compare_with_saved(saved.path, small); });
  session_.world().run_and_agree("self-test is over", [&] {
    if (root_) delete_checkpoint(saved.path);
  });
  log::info("self-test: {} of {} tensors, {}, were saved and read back bit for bit", count,
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
  CheckpointReader(path, *checkpoint_format_).load(wanted, session_.mesh(), buckets_, local, options);
  for (const Descriptor& descriptor : tensors) {
    const Tensor here = run(descriptor, session_.rank()).to(Device{}), there = read.at(descriptor.fqn);
    const int64_t size = size_bytes(descriptor.dtype);
    for (const Piece& piece : Layout(descriptor, session_.mesh()).pieces(session_.rank()))
      for_each_run({piece.box, piece.local, piece.local}, [&](int64_t from, int64_t, int64_t length) {
        if (std::memcmp(here.data_as<char>() + from * size, there.data_as<char>() + from * size,
                        static_cast<size_t>(length * size)) != 0)
          throw storage_error("the self-test saved '" + descriptor.fqn + "', but read other bytes from " + path)
              .hint("check the disk; if it has no errors, format '" + checkpoint_format_->name() + "' is defective");
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
  if (refers_to_base(session_)) {
    CHASSIS_CHECK(base_.has_value(), "frozen parameters were loaded from a directory");
    base_->add_to(request.about);
  }
  const std::vector<std::string> spelling = session_.disk_mapping().names_of(session_.export_forms());
  if (!spelling.empty()) request.about[kSpelling] = spelling;
  request.tensors = async == AsyncSave::kStaged ? staged_tensors(plan) : local_tensors(session_, request.resumable);
  const bool has_components = session_.quant() != nullptr && saved_parameters(session_) == Which::kAll;
  request.text_files = {{"config.json", checkpoint_config(session_, has_components, head_ ? &*head_ : nullptr)},
                        {"resolved.toml", session_.config().resolved_toml()}};
  if (session_.adapter() != nullptr) request.text_files.emplace_back(kAdapterConfigName, adapter_config(session_));
  carry_files_of_model(request);
  request.on_published = [this, name = request.name, keep_last = *settings.keep_last, keep_every = *settings.keep_every,
                          is_best = step == best_step_] {
    root_->set_latest(name);
    if (is_best) root_->set_best(name);
    root_->prune(keep_last, keep_every);
  };
  save_ = std::make_unique<Save>(*checkpoint_format_, buckets_, plan, std::move(request), session_.world(),
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

SaveResult Saver::export_model(const std::string& name, int64_t step) {
  SaveRequest request;
  request.parent = directory_;
  request.name = name;
  request.step = step;
  if (exports_adapter(session_)) {
    request.text_files = {{kAdapterConfigName, adapter_config(session_)}};
    if (base_) base_->add_to(request.about);
    if (head_) add_head(request.about, *head_);
  } else {
    request.text_files = {{"config.json", export_config(session_, false, head_ ? &*head_ : nullptr)}};
  }
  carry_files_of_model(request);
  if (session_.adapter() != nullptr && session_.settings().exports.merge) return export_merged(request, step);
  request.tensors = exported_tensors(session_);
  return CheckpointWriter(*export_format_, buckets_).save(export_plan(), request, session_.world());
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
