#include "host/save/saver.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/plan_agreement.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/weights.hpp"
#include "host/service/memory.hpp"
#include "host/session/finite.hpp"
#include "host/session/run_tokenizer.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

constexpr int64_t kSelfTestBytes = 16 << 20;

// Of model.path: config.json, which is written anew, and a tokenizer that this run did not use.
std::set<std::string> files_left_out(Session& session) {
  const Settings& settings = session.settings();
  const std::vector<std::string> other = other_tokenizer_files(session.config());
  if (!other.empty() && session.world().rank() == 0)
    log::counted_warning("export without tokenizer", "the export leaves out the tokenizer of " + *settings.model.path +
                                                         " (" + other.front() + " …): this run used tokenizer '" +
                                                         *settings.tokenizer.plugin + "'");
  std::set<std::string> names(other.begin(), other.end());
  names.insert("config.json");
  return names;
}

}  // namespace

Saver::Saver(Session& session, std::string directory, CheckpointRoot* root)
    : session_(session),
      directory_(std::move(directory)),
      checkpoint_instance_(slot_format(session, session.settings().checkpoint)),
      export_instance_(slot_format(session, session.settings().exports)),
      checkpoint_format_(*checkpoint_instance_),
      export_format_(*export_instance_),
      buckets_(bucket_bytes(session)),
      root_(root) {
  session.world().together("opening " + checkpoints(), [&] {
    const bool is_first = session.world().rank() == 0;
    if (is_first && !root_) root_ = &own_root_.emplace(checkpoints());
    if (const Setting<std::string>& model = session.settings().model.path; is_first && model.is_set()) {
      carried_files_ = files_to_carry(model, files_left_out(session));
      mode_ = mode_like(model);
    }
    checkpoint_plan();
    export_plan();
    if (!is_first) return;
    compare_with_model(session, export_plan());
    if (!saves_all(session))
      log::counted_warning("not resumable",
                           "checkpoint.contents = \"model_only\": what this run saves cannot be resumed");
  });
  agree_on_plan(checkpoint_plan(), "what this run saves", session.world());
  agree_on_plan(export_plan(), "what this run exports", session.world());
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

void Saver::self_test() {
  std::vector<Descriptor> small = training_tensors(session_, saves_all(session_));
  const auto bytes = [](const Descriptor& d) { return numel(d.global_shape) * size_bytes(d.dtype); };
  std::stable_sort(small.begin(), small.end(),
                   [&](const Descriptor& a, const Descriptor& b) { return bytes(a) < bytes(b); });
  int64_t room = kSelfTestBytes;
  size_t count = 0;
  while (count < small.size() && (count == 0 || bytes(small[count]) <= room)) room -= bytes(small[count++]);
  small.resize(count);

  std::vector<SaveTensor> tensors;
  for (const Descriptor& descriptor : small) tensors.push_back(SaveTensor::plain(descriptor));
  const SavePlan plan = plan_save(std::move(tensors), session_.mesh(), checkpoint_format_);
  SaveRequest request;
  request.parent = directory_;
  request.name = "self-test";
  request.tensors = local_tensors(session_, saves_all(session_));
  const SaveResult saved = CheckpointWriter(checkpoint_format_, buckets_).save(plan, request, session_.world());
  session_.world().together("self-test", [&] { compare_with_saved(saved.path, small); });
  session_.world().together("self-test is over", [&] {
    if (root_) delete_checkpoint(saved.path);
  });
  log::info("self-test: {} of {} tensors, {}, were saved and came back bit for bit", count,
            checkpoint_plan().tensors.size(), bytes_text(saved.num_bytes));
}

// This rank's part of what was saved.
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
          throw storage_error("the self-test saved '" + descriptor.fqn + "', and other bytes came back from " + path)
              .hint("the disk or format '" + checkpoint_format_.name() + "' is not to be trusted");
      });
  }
}

void Saver::begin(int64_t step, const Json& state) {
  CHASSIS_CHECK(!save_, "one save at a time");
  const Settings::Checkpoint& settings = session_.settings().checkpoint;
  const SavePlan& plan = checkpoint_plan();
  const std::string& async = settings.async;
  SaveRequest request;
  request.parent = checkpoints();
  request.name = step_directory_name(step);
  request.step = step;
  request.resumable = saves_all(session_);
  request.state = state;
  request.about = {{"model", session_.model().member()},
                   {"names", kParameterNames},
                   {"plugins", plugins_lock(session_.plugins().registry(), session_.compiled())}};
  request.tensors = async == "staged" ? staged_tensors(plan) : local_tensors(session_, request.resumable);
  request.text_files = {{"config.json", session_.model().plugin().config()},
                        {"resolved.toml", session_.config().resolved_toml()}};
  carry_files_of_model(request);
  request.on_published = [this, name = request.name, keep_last = *settings.keep_last,
                          keep_every = *settings.keep_every] {
    root_->set_latest(name);
    root_->prune(keep_last, keep_every);
  };
  save_ = std::make_unique<Save>(checkpoint_format_, buckets_, plan, std::move(request), session_.world(),
                                 async == "false" ? Save::Where::kHere : Save::Where::kOnAThread);
}

// Copies in host memory of what this rank writes.
LocalTensors Saver::staged_tensors(const SavePlan& plan) {
  const LocalTensors local = local_tensors(session_, saves_all(session_));
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
  if (save_ && session_.settings().checkpoint.async != "staged") save_->await_tensors();
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
  const std::string& wanted = session_.settings().run.resume;
  if (wanted == "never") return std::nullopt;
  if (wanted != "auto") {
    const std::string given = run_of(wanted);
    return load_checkpoint(is_run_directory(given) ? newest_of(given) : given);
  }
  std::optional<Resumed> resumed;
  std::vector<std::string> passed;
  const auto used = load_best(
      session_.world(), checkpoints(), [&](const std::string& path) { resumed = load_checkpoint(path); },
      [&](const CheckpointInfo& checkpoint, const std::string& why) {
        pass_over(checkpoint, why);
        passed.push_back(checkpoint.name);
      });
  if (used) keep_aside(passed, used->name);
  return resumed;
}

// Of another run, or of this one; whether it is whole shows when it is read.
std::string Saver::newest_of(const std::string& run) const {
  return found_by_first(session_.world(), "finding checkpoints", [&] {
    const auto newest = newest_checkpoint(run + "/checkpoints");
    if (!newest) throw no_checkpoint(run);
    return newest->path;
  });
}

// What was passed over is not in the way of the run, which comes to its step again.
void Saver::keep_aside(const std::vector<std::string>& passed, const std::string& used) {
  session_.world().together("setting damaged checkpoints aside", [&] {
    if (!root_ || passed.empty()) return;
    for (const std::string& name : passed)
      if (const std::string aside = root_->set_aside(name); !aside.empty())
        log::warn("{}/{} is kept as {}; delete it when nobody needs it", root_->path(), name, aside);
    root_->set_latest(used);
  });
}

Saver::Resumed Saver::load_checkpoint(const std::string& path) {
  const LocalTensors local = local_tensors(session_, true);
  std::vector<LoadTensor> tensors;
  for (Descriptor& descriptor : training_tensors(session_, true)) tensors.push_back({std::move(descriptor), ""});
  std::unique_ptr<CheckpointReader> reader;
  LoadResult result;
  expect_same_files(session_.world(), path);
  together_unless_damaged(session_.world(), "loading " + path, [&] {
    reader = open_checkpoint(path);
    if (session_.world().rank() == 0) {
      verify_carried_files(path, reader->manifest());
      require_same_optimizer(path, session_.settings().optimizer.plugin);
    }
    result = reader->load(tensors, session_.mesh(), buckets_, local, load_options(session_));
  });
  log::info("read {}: {}", path, reader->verify_parts(result, session_.world()).text());
  share_what_was_read(session_, tensors, result, local, buckets_);
  session_.publish();
  const std::string hint = how_to_avoid(path, reader->manifest()->step);
  require_finite(session_, "the parameters in " + path, hint);
  require_finite_states(session_, "the optimizer's states in " + path, hint);
  return {path, reader->manifest()->state};
}

// What to go on from where a checkpoint is whole, and of no use.
std::string Saver::how_to_avoid(const std::string& path, int64_t step) const {
  std::string before;
  for (const CheckpointInfo& info : list_checkpoints(checkpoints()))
    if (info.step < step && info.resumable && !info.set_aside && info.defect.empty()) before = info.path;
  if (before.empty()) return "go on from a checkpoint before " + path + ", or from other weights";
  return "run.resume = \"" + before + "\" goes on from an older one; a lower optimizer.lr may keep it finite";
}

std::unique_ptr<CheckpointReader> Saver::open_checkpoint(const std::string& path) {
  if (SourceDirectory(path).find_file(kManifestName) < 0)
    throw storage_error(path + " is no checkpoint: it has no " + kManifestName)
        .hint("run.resume takes one as in checkpoints/; weights alone are model.path");
  const auto weights_alone = [&] {
    return storage_error(path + " holds weights alone and cannot be resumed")
        .hint("start from it instead: model.path = \"" + path +
              "\", and run.resume = \"never\" in a directory of its own");
  };
  SourceDirectory directory(path);
  if (!CheckpointManifest::read(directory).resumable) throw weights_alone();
  const std::string format_name = format_of(session_, path);
  if (format_name != checkpoint_format_.name())
    throw storage_error(path + " is of format '" + format_name + "', [checkpoint] plugin is '" +
                        checkpoint_format_.name() + "'")
        .hint("set checkpoint.plugin = \"" + format_name + "\"");
  auto reader = std::make_unique<CheckpointReader>(path, checkpoint_format_);
  if (!reader->manifest() || !reader->manifest()->resumable) throw weights_alone();
  return reader;
}

SaveResult Saver::export_model(const std::string& name, int64_t step) {
  const SavePlan& plan = export_plan();
  CheckpointWriter writer(export_format_, buckets_);
  SaveRequest request;
  request.parent = directory_;
  request.name = name;
  request.step = step;
  request.tensors = exported_tensors(session_);
  request.text_files = {{"config.json", export_config(session_)}};
  carry_files_of_model(request);
  return writer.save(plan, request, session_.world());
}

// Tokenizer, chat template, generation_config: with them each checkpoint can be exported by itself.
void Saver::carry_files_of_model(SaveRequest& request) const {
  request.carried_files = carried_files_;
  request.mode = mode_;
}

}  // namespace chassis
