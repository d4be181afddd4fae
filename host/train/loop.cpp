// Takes a step, then does what is due after it, and so on.
#include "host/train/loop.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "host/base/log.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/step_place.hpp"
#include "host/session/run_data.hpp"
#include "host/train/run_report.hpp"

namespace chassis {

StepsTaken RunLoop::operator()() {
  const Trainer& trainer = *run_.trainer;
  swaps_.before_steps();
  while (trainer.state().step < trainer.options().max_steps) {
    if (run_.best && run_.best->is_out_of_patience()) {
      log::info("{}", run_.best->end_text());
      break;
    }
    const StepRecord record = take_step();
    const int64_t step = trainer.state().step;
    follow_up(step);
    if (!trainer.requests().stop) swaps_.after_step(record, trainer.requests().swap);
    if (run_.trace) run_.trace->end_step(step);
    if (trainer.requests().stop) {
      taken_.was_stopped = step < trainer.options().max_steps;
      break;
    }
  }
  return std::move(taken_);
}

StepRecord RunLoop::take_step() {
  Trainer& trainer = *run_.trainer;
  const int64_t step = trainer.state().step + 1;
  if (run_.trace) run_.trace->begin_step(step);
  const ScopedSpan span(run_.recorder(), TraceTrack::kSteps,
                        run_.trace ? "step " + std::to_string(step) : std::string());
  StepRecord record = trainer.step();
  record.save_ms = std::exchange(save_ms_, 0.0);
  write_metrics(session_.ranks().communicator.take_counts(), session_.metrics());
  record.extra = session_.metrics().take();
  taken_.last = record;
  if (run_.board) run_.board->set(record);
  run_.sinks.write(step, [&](MetricsSink& sink) { sink.step(record); });
  if (!std::exchange(memory_is_logged_, true)) log_memory();
  return record;
}

void RunLoop::follow_up(int64_t step) {
  Trace* const trace = run_.recorder();
  RunSaves& saves = *run_.saves;
  const StepRequests& requests = run_.trainer->requests();
  if (const int64_t every = session_.settings().run.replica_check_steps; every > 0 && step % every == 0) {
    const ScopedSpan span(trace, TraceTrack::kSteps, "comparison of replicas");
    replicas_.require_equal(step);
  }
  if (saves.saver().is_saving() && requests.ready) {
    const ScopedSpan span(trace, TraceTrack::kSaves, "next part of a save");
    save([&] { saves.advance(); });
  }
  if (evaluation_is_due(step)) {
    const ScopedSpan span(trace, TraceTrack::kSteps, "evaluation");
    evaluate_all(step);
  }
  if (run_.samples->due(step, run_.trainer->options().max_steps)) {
    const ScopedSpan span(trace, TraceTrack::kSteps, "samples");
    run_.samples->take(step, [&](const SampleRecord& record) {
      run_.sinks.write(step, [&](MetricsSink& sink) { sink.sample(record); });
    });
  }
  if (requests.save || saves.due(step)) {
    enter_phase("save");
    const ScopedSpan span(trace, TraceTrack::kSaves, "save");
    save([&] { saves.save(step); });
  }
}

void RunLoop::save(const std::function<void()>& part) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  part();
  save_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Logs planned and measured memory of this rank.
void RunLoop::log_memory() {
  if (session_.world().rank() != 0) return;
  const bool on_device = session_.device().spec().has_own_memory;
  const PlanMemory measured = plan_memory(memory_usage());
  const uint64_t peak = on_device ? device_memory(session_.device()).peak_active_bytes : measured.peak_bytes;
  if (!run_.fit.plan) return;
  std::string text = memory_text(run_.fit.plan->start, measured, peak, peak_resident_bytes(), !on_device);
  if (run_.data->lengths().vary())
    text += fmt::format("\n  planned for micro-batches of {} positions; shorter ones take less",
                        *session_.settings().train.seq_len);
  log::info("{}", text);
}

bool RunLoop::evaluation_is_due(int64_t step) const {
  if (run_.eval_data.empty() && run_.generation_sets->size() == 0) return false;
  const int64_t every = session_.settings().eval.every_steps;
  return step == run_.trainer->options().max_steps || (every > 0 && step % every == 0);
}

// A step with a new best result of eval.keep_best is saved.
void RunLoop::evaluate_all(int64_t step) {
  bool is_best = false;
  taken_.was_evaluated = true;
  for (size_t i = 0; i < run_.eval_data.size(); ++i) is_best |= evaluate_loss(i, step);
  for (size_t i = 0; i < run_.generation_sets->size(); ++i) is_best |= evaluate_answers(i, step);
  if (is_best) save([&] { run_.saves->save_best(step); });
}

bool RunLoop::evaluate_loss(size_t index, int64_t step) {
  const Settings& settings = session_.settings();
  EvalRecord record = evaluate(session_, run_.objective ? &*run_.objective : nullptr, *run_.eval_data[index]);
  record.step = step;
  record.name = eval_name(settings.data, index);
  run_.sinks.write(step, [&](MetricsSink& sink) { sink.evaluation(record); });
  if (!std::isfinite(record.loss))
    counted_warning("evaluation without a finite loss",
                    fmt::format("the loss of \"{}\" at step {} is {}", record.name, step, record.loss));
  const std::string& metric = settings.eval.metric;
  double value = metric == "loss" ? record.loss : std::numeric_limits<double>::quiet_NaN();
  for (const auto& [name, number] : record.objective)
    if (name == metric) value = number;
  return improves_best(record.name, step, value);
}

bool RunLoop::evaluate_answers(size_t index, int64_t step) {
  std::optional<ScoreRecord> record;
  try {
    record = run_.generation_sets->evaluate(index);
  } catch (const Error& error) {  // on all ranks, such as a judge that is gone
    if (error.code() == ExitCode::kConfig) {
      run_.saves->save(step);
      run_.saves->finish();
    }
    throw;
  }
  if (!record) {
    counted_warning("evaluations given up", fmt::format("the run is to stop, so \"{}\" has no score at step {}",
                                                        run_.generation_sets->name(index), step));
    return false;
  }
  record->step = step;
  run_.sinks.write(step, [&](MetricsSink& sink) { sink.score(*record); });
  return improves_best(record->name, step, record->score());
}

bool RunLoop::improves_best(const std::string& set, int64_t step, double value) {
  return run_.best && set == run_.best->set() && run_.best->add(step, value);
}

}  // namespace chassis
