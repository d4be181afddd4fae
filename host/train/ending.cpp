// Saves, exports and reports.
#include "host/train/ending.hpp"

#include <fmt/format.h>

#include <cmath>

#include "host/base/log.hpp"
#include "host/base/units.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/service/device.hpp"
#include "host/train/run_report.hpp"

namespace chassis {

RunEnding::RunEnding(Session& session, const RunSignals& signals, const std::vector<std::string>& plugin_path,
                     PreparedRun& run)
    : session_(session),
      signals_(signals),
      plugin_path_(plugin_path),
      run_(run),
      start_(std::chrono::steady_clock::now()),
      first_tokens_(run.trainer->state().tokens),
      first_step_(run.trainer->state().step) {}

void RunEnding::finish(const StepsTaken& taken) {
  const bool stopped = taken.was_stopped;
  const TrainerState& state = run_.trainer->state();
  RunSaves& saves = *run_.saves;
  if (state.step > 0) saves.save(state.step);
  saves.finish();
  const bool exports = !stopped && session_.settings().exports.when != ExportWhen::kNever;
  if (exports) saves.export_final(state.step);
  count_nonfinite(taken, exports);
  if (run_.board) run_.board->finish();
  finish_outputs(stopped ? RunOutcome::kStopped : RunOutcome::kDone);
  session_.world().run_and_agree("metrics of the run", [this] {
    if (run_.sinks.failure()) throw *run_.sinks.failure();
  });
  const std::string_view signal = signals_.name();
  log_totals(!stopped ? "done" : signal.empty() ? "stopped" : signal);
  log_best(stopped);
  log_hint(stopped);
  if (!stopped && !exports && state.step > 0 && !saves.is_saved(state.step))
    throw storage_error("step " + std::to_string(state.step) + " was trained, but could not be saved");
}

void RunEnding::fail(const Error& error) {
  // A numeric error is thrown on all ranks. A save in progress is of an earlier step and is still finished.
  if (error.code() == ExitCode::kNumeric) run_.saves->finish();
  finish_outputs(RunOutcome::kFailed);
  if (run_.trainer->state().step <= first_step_) return;
  log_totals("failed");
  if (session_.world().rank() == 0) log::info("{}", run_.saves->last_checkpoint_text());
}

void RunEnding::finish_outputs(RunOutcome outcome) {
  if (run_.trace) run_.trace->finish();
  run_.sinks.finish(outcome, run_.trainer->state().step);
}

// A run that skips steps whose loss is not finite ends as others do, but its weights may be useless.
void RunEnding::count_nonfinite(const StepsTaken& taken, bool exports) {
  if (run_.best && run_.best->step() < 0 && taken.was_evaluated)
    counted_warning("no best checkpoint", fmt::format("eval.keep_best = \"{}\" has kept nothing: no evaluation of that "
                                                      "set had a finite loss",
                                                      run_.best->set()));
  if (!taken.last || std::isfinite(taken.last->loss)) return;
  counted_warning(
      "last loss not finite",
      fmt::format("the loss of the last step ({}) is {}: the weights {} may be of no use", taken.last->step,
                  taken.last->loss, exports ? "in " + run_.directory->path() + "/final" : "that were saved"));
}

void RunEnding::log_totals(std::string_view outcome) {
  const TrainerState& state = run_.trainer->state();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double tokens = static_cast<double>(state.tokens - first_tokens_);
  log::info("{} at step {} of {}: {} tokens in {}, {} tok/s, peak {}", outcome, state.step,
            run_.trainer->options().max_steps, count_text(tokens), duration_text(seconds),
            count_text(seconds > 0.0 ? tokens / seconds : 0.0),
            bytes_text(device_memory(session_.device()).peak_active_bytes));
  const bool first_rank = session_.world().rank() == 0;
  if (const std::string rows = first_rank ? rows_taken_text(*run_.data) : ""; !rows.empty()) log::info("{}", rows);
  if (const std::string positions = first_rank ? positions_text(run_.data->stats()) : ""; !positions.empty())
    log::info("{}", positions);
  for (const auto& [key, count] : counted_warnings())
    log::info("warning: {} ({})", key, count == 1 ? "once" : fmt::format("{} times", count));
  if (const std::string failures = first_rank ? run_.saves->failures() : ""; !failures.empty())
    log::info("warning: {}", failures);
}

void RunEnding::log_best(bool stopped) {
  if (!run_.best || run_.best->step() < 0 || session_.world().rank() != 0) return;
  const std::string& directory = run_.directory->path();
  const bool has_final = !stopped && session_.settings().exports.when != ExportWhen::kNever &&
                         run_.best->step() < run_.trainer->state().step;
  log::info("best: {}; {}/best{}", run_.best->text(), directory,
            has_final
                ? ", and final/ has the last weights: chassis ckpt export " + shell_word(directory + "/best") + " DIR"
                : "");
}

// Says how to continue.
void RunEnding::log_hint(bool stopped) {
  const Settings& settings = session_.settings();
  const std::string& directory = run_.directory->path();
  const int64_t step = run_.trainer->state().step;
  const bool is_early = step < run_.trainer->options().max_steps;
  if (!stopped) return log::info("{}", next_steps(settings, session_.tokenizer(), directory, is_early, plugin_path_));
  log::info("{}", resume_hint(settings, {directory, step, run_.saves->is_saved(step), saves_states(session_)}));
}

}  // namespace chassis
