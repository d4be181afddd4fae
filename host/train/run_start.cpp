// Starts from new weights, or restores what state_to_save() returned.
#include "host/train/run_start.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"
#include "host/checkpoint/source_directory.hpp"
#include "host/save/resume_differences.hpp"
#include "host/save/weights.hpp"
#include "host/session/reference_values.hpp"

namespace chassis {
namespace {

ResolvedLength length_of(const Trainer& trainer) {
  return {trainer.options().max_steps, trainer.options().shape.num_rows()};
}

class RunStart {
 public:
  RunStart(Session& session, PreparedRun& run)
      : session_(session), run_(run), directory_(run.directory->path()), trainer_(*run.trainer) {}

  void operator()() {
    if (precomputes_reference(session_)) precompute();
    if (run_.reference) run_.reference_hash = reference_model_hash(session_);
    if (run_.reference && run_.reference->has_copy()) {
      fill_reference();
      run_.reference->take();
    }
    if (const auto resumed = run_.saves->saver().resume()) {
      resume(resumed->checkpoint, resumed->state);
      const ResumeFrom& from = settings().run.resume;
      run_.directory->set_later_steps_aside(from == Resume::kAuto ? resumed->checkpoint : from.text,
                                            trainer_.state().step);
    } else {
      start_anew();
    }
  }

 private:
  const Settings& settings() const { return session_.settings(); }

  // The reference is the model before training, also where a run is resumed: the weights of the checkpoint come after.
  void fill_reference() {
    const Setting<std::string>& path = settings().reference.path;
    if (path.is_set())
      run_.saves->saver().start_from(path);
    else
      run_.saves->saver().start();
    is_filled_ = !path.is_set();
  }

  void precompute() {
    run_.reference_hash = precompute_reference(session_, run_.data.get(), run_.eval_data, [this] { fill_reference(); });
  }

  void compare_reference(const Json& state, const std::string& where) const {
    if (run_.reference_hash.empty() || !state.contains("reference")) return;
    const std::string before = json_string(state, "reference", where);
    if (before == run_.reference_hash || session_.world().rank() != 0) return;
    counted_warning(
        "another reference",
        fmt::format("the run in {} was compared with a reference of key {}, and now with one of key {}: its "
                    "weights, or what computes it, have changed",
                    directory_, before, run_.reference_hash));
  }

  void start_anew() {
    if (run_.best) run_.saves->restore_best(-1);
    if (!is_filled_) run_.saves->saver().start();
  }

  void resume(const std::string& checkpoint, const Json& state) {
    const std::string where = checkpoint + "/manifest.json";
    TrainerState& trainer = trainer_.state();
    trainer = trainer_state_from_json(state, where);
    restore_data(state, where);
    compare_reference(state, where);
    if (state.contains("data")) count_steps_left();
    if (checkpoint.starts_with(directory_ + "/checkpoints/")) run_.saves->set_saved(trainer.step);
    log::info("resumed from {} at step {}", checkpoint, trainer.step);
    session_.world().run_and_agree("comparing with " + checkpoint, [&] {
      if (session_.world().rank() != 0) return;
      const LearningRateSchedule& schedule = trainer_.options().schedule;
      report(resume_differences(checkpoint, trainer.step, length_of(trainer_), schedule, session_), checkpoint,
             settings().run.strict);
    });
    check_length(checkpoint);
    if (run_.best) restore_best(state, where);
  }

  void restore_data(const Json& state, const std::string& where) {
    if (!state.contains("data"))  // an imported checkpoint
      return counted_warning("data from its beginning",
                             where + " was written by another program and has no position in this data");
    const int64_t seed = json_int(state, "seed", where);
    if (const Setting<int64_t>& wanted = settings().run.seed; seed != wanted)
      throw config_error(wanted, "run.seed is " + std::to_string(*wanted) + ", the run in " + directory_ + " has " +
                                     std::to_string(seed))
          .hint("a resumed run keeps its seed");
    run_.data->restore(json_at(state, "data", where), where);
  }

  // Epochs count rows of data. If earlier steps had another batch size, the steps left follow from the rows left.
  void count_steps_left() {
    const TrainData& data = *run_.data;
    const int64_t rows = trainer_.options().shape.num_rows(), step = trainer_.state().step;
    if (settings().run.max_steps != 0 || data.num_rows_taken() == static_cast<uint64_t>(step * rows)) return;
    const double left = settings().run.epochs - data.epoch();
    trainer_.set_max_steps(step + (left > 0 ? data.num_steps(left, rows) : 0));
  }

  // Throws if no step is left to train. A run with all steps done may still have to save here, or to export.
  void check_length(const std::string& checkpoint) {
    const int64_t step = trainer_.state().step, last = trainer_.options().max_steps;
    if (step < last || (step == last && (!run_.saves->is_saved(step) || export_is_missing(step)))) return;
    const Settings::Run& run = settings().run;
    const bool by_epochs = run.max_steps == 0;
    const std::string length = by_epochs ? fmt::format("run.epochs = {:g} is {} steps", *run.epochs, last)
                                         : fmt::format("run.max_steps is {}", last);
    throw config_error(
        by_epochs ? static_cast<const ConfigEntry&>(run.epochs) : run.max_steps,
        fmt::format("{}, and the run has reached step {} ({}): nothing is left to train", length, step, checkpoint))
        .hint("raise it to train further, or choose another run.output_dir for another run");
  }

  bool export_is_missing(int64_t step) {
    if (settings().exports.when == ExportWhen::kNever) return false;
    const std::string path = directory_ + "/final";
    const std::string found = find_on_rank_0(session_.world(), "looking for " + path, [&]() -> std::string {
      try {
        SourceDirectory directory(path);
        return std::to_string(CheckpointManifest::read(directory).step);
      } catch (const Error&) {  // absent or incomplete
        return "";
      }
    });
    if (found != std::to_string(step)) log::info("all {} steps are done; only {} is missing", step, path);
    return found != std::to_string(step);
  }

  // The link names the best checkpoint up to this step, which is not the newest best one if an older step is resumed.
  void restore_best(const Json& state, const std::string& where) {
    BestEvaluation& best = *run_.best;
    if (state.contains("best")) best.restore(state["best"], where);
    if (run_.saves->restore_best(best.step()) || best.step() < 0) return;
    counted_warning("best checkpoint is gone", "the checkpoint with the " + best.text() + " is not in " + directory_ +
                                                   "/checkpoints: the next evaluation counts as the best");
    best.forget();
  }

  Session& session_;
  PreparedRun& run_;
  bool is_filled_ = false;        // the parameters are those before training
  const std::string& directory_;  // the path
  Trainer& trainer_;
};

}  // namespace

Json state_to_save(const PreparedRun& run, const Pipeline& pipeline, int64_t seed) {
  const TrainerState& state = run.trainer->state();
  Json saved = {{"step", state.step},
                {"tokens", state.tokens},
                {"trained_tokens", state.trained_tokens},
                {"skipped_steps", state.skipped_steps},
                {"seed", seed},
                {"length", to_json(length_of(*run.trainer))},
                {"data", run.data->save()}};
  if (Json record = pipeline_record(pipeline); !record.is_null()) saved["pipeline"] = std::move(record);
  if (run.best) saved["best"] = run.best->to_json();
  if (!run.reference_hash.empty()) saved["reference"] = run.reference_hash;
  return saved;
}

void resume_or_start_anew(Session& session, PreparedRun& run) { RunStart(session, run)(); }

}  // namespace chassis
