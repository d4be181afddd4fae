// Runs training steps and evaluations on rows of data.
#include "host/train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/plugin/call.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/step_place.hpp"
#include "host/session/fields.hpp"
#include "host/session/finite.hpp"

namespace chassis {
namespace {

class Stopwatch {
 public:
  // Milliseconds since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The maximum that each category of the host's allocator held at any call of look().
class CategoryPeaks {
 public:
  void look() {
    const MemoryUsage usage = memory_usage();
    for (size_t i = 0; i < kNumMemoryCategories; ++i) peaks_[i] = std::max(peaks_[i], usage.categories[i].live_bytes);
  }
  NamedValues values() const {
    NamedValues values;
    for (size_t i = 0; i < kNumMemoryCategories; ++i)
      if (peaks_[i] > 0)
        values.emplace_back(fmt::format("memory/{}_bytes", memory_category_name(static_cast<MemoryCategory>(i))),
                            static_cast<double>(peaks_[i]));
    return values;
  }

 private:
  std::array<uint64_t, kNumMemoryCategories> peaks_{};
};

// Spans of the trace between one phase of a step and the next.
class PhaseSpans {
 public:
  explicit PhaseSpans(Trace* trace) : trace_(trace != nullptr && trace->on() ? trace : nullptr) {
    if (trace_) last_ns_ = Trace::now_ns();
  }
  void end(TraceTrack track, std::string_view name, int microbatch = -1) {
    if (!trace_) return;
    TraceSpan span{.begin_ns = last_ns_, .end_ns = Trace::now_ns(), .name = trace_->intern(name), .track = track};
    span.microbatch = microbatch;
    last_ns_ = span.end_ns;
    trace_->add(span);
  }
  void end(StepPhase phase, int microbatch) {
    switch (phase) {
      case StepPhase::kForward:
        return end(TraceTrack::kMicrobatches, "forward", microbatch);
      case StepPhase::kBackward:
        return end(TraceTrack::kMicrobatches, "backward", microbatch);
      case StepPhase::kReduction:
        return end(TraceTrack::kOptimizer, "reduction of gradients");
      case StepPhase::kUpdate:
        return end(TraceTrack::kOptimizer, "norm and update");
      case StepPhase::kEnd:
        return end(TraceTrack::kOptimizer, "end of the step");
    }
  }

 private:
  Trace* trace_;
  int64_t last_ns_ = 0;
};

Error no_content(const EvalData& data, const std::string& what) {
  return {ExitCode::kConfig, data.config().where, "evaluation set '" + data.config().path + "' has no " + what};
}

}  // namespace

TrainerState trainer_state_from_json(const Json& saved, const std::string& where) {
  TrainerState state;
  state.step = static_cast<int64_t>(json_count(saved, "step", where));
  state.tokens = json_count(saved, "tokens", where);
  state.trained_tokens = json_count(saved, "trained_tokens", where);
  state.skipped_steps = json_count(saved, "skipped_steps", where);
  const auto expect_part = [&](const char* part, uint64_t count, const char* whole, uint64_t most) {
    if (count > most)
      throw config_error(fmt::format("{}: '{}' is {}, but '{}' is only {}", where, part, count, whole, most));
  };
  expect_part("trained_tokens", state.trained_tokens, "tokens", state.tokens);
  expect_part("skipped_steps", state.skipped_steps, "step", static_cast<uint64_t>(state.step));
  return state;
}

Trainer::Trainer(RunState& run, TrainData& data, TrainerOptions options)
    : run_(run), data_(data), options_(std::move(options)), routers_(run.model.compiled->program()) {}

void Trainer::set_options(TrainerOptions options) {
  options_ = std::move(options);
  routers_ = RouterMetrics(run_.model.compiled->program());
}

StepRecord Trainer::step() {
  const StepParts parts = run_.step_parts();
  StepRecord record;
  Stopwatch watch, whole;
  CategoryPeaks memory_peaks;
  PhaseSpans spans(options_.trace);
  enter_phase("data");
  const StepData data = data_.next_step(options_.shape);
  spans.end(TraceTrack::kData, "data");
  record.step = state_.step + 1;
  set_current_step(record.step);
  record.tokens = data.num_tokens;
  record.trained_tokens = data.num_trained_tokens;
  record.data_ms = watch.lap();

  ObjectiveStep* const objective = options_.objective;
  if (objective != nullptr) {
    objective->begin(data.micro_batches);
    record.objective.emplace_back("values_ms", watch.lap());
    spans.end(TraceTrack::kMicrobatches, "values of the reference and the model");
  }
  StepInputs inputs;
  inputs.step = record.step;
  inputs.schedule = parts.ranks.work(options_.shape.num_micro_batches);
  inputs.fields = [&](int m) { return to_fields(data.micro_batches[static_cast<size_t>(m)], parts.device); };
  inputs.random = [&](int m) -> RandomBits {
    const StepShape& shape = options_.shape;
    return {hash64("step " + std::to_string(record.step), options_.seed),
            (m * shape.num_ranks + shape.rank) * shape.micro_batch_size};
  };
  // The global count of trained tokens makes the loss independent of accumulation, packing and strategy.
  inputs.loss_scale = objective == nullptr ? 1.0 / static_cast<double>(data.num_trained_tokens) : 1.0;
  if (objective != nullptr) {
    inputs.objective = [&](int m, const StreamValues& outputs) { return objective->value(m, outputs); };
    inputs.sums = [&] { return objective->sums(); };
  }
  inputs.lr = record.lr = options_.schedule.at(record.step);
  inputs.max_grad_norm = options_.max_grad_norm;
  inputs.requests = options_.requests;
  inputs.before_update = options_.before_update;
  inputs.observer = [&](StepPhase phase, int microbatch) {
    spans.end(phase, microbatch);
    if (phase == StepPhase::kForward) record.forward_ms += watch.lap();
    if (phase == StepPhase::kBackward) record.backward_ms += watch.lap();
    if (phase == StepPhase::kEnd) record.optimizer_ms = watch.lap();
    memory_peaks.look();
  };
  const StepResult result = run_step(parts, inputs);
  requests_ = result.requests;
  record.loss = result.loss;
  if (objective != nullptr) {
    if (record.step == 1) objective->require_equal_to_reference(result.sums);
    for (auto& metric : objective->metrics(result.sums)) record.objective.push_back(std::move(metric));
  }
  record.grad_norm = result.grad_norm;
  if (result.applied) {
    skipped_in_a_row_ = 0;
    last_applied_ = record.step;
    if (record.grad_norm == 0)
      counted_warning("gradient of zero", "step " + std::to_string(record.step) +
                                              ": the gradient norm is exactly 0, so nothing was learned from its data");
  } else {
    refuse_step(record);
  }

  if (routers_.is_due(record.step, options_.router_every_steps) || record.step == options_.max_steps)
    record.routers = routers_.take(*run_.model.executor, parts.ranks, record.step);

  state_.step = record.step;
  state_.tokens += record.tokens;
  state_.trained_tokens += record.trained_tokens;
  const DeviceMemory memory = device_memory(parts.device);
  record.peak_memory_bytes = memory.peak_active_bytes;
  record.active_memory_bytes = memory.active_bytes;
  record.reserved_memory_bytes = memory.reserved_bytes;
  record.memory = memory_peaks.values();
  record.epoch = data_.epoch();
  record.step_ms = whole.lap();
  if (options_.process_settings)
    require_process_settings(*options_.process_settings, "", fmt::format("by the end of step {}", record.step));
  return record;
}

void Trainer::refuse_step(StepRecord& record) {
  ++state_.skipped_steps;
  ++skipped_in_a_row_;
  record.skipped = true;
  const std::string what = "step " + std::to_string(record.step) + ": loss " + std::to_string(record.loss) +
                           ", gradient norm " + std::to_string(record.grad_norm) + "; the step was not applied";
  const ParameterTable& parameters = run_.parameters();
  if (const auto bad = find_nonfinite(parameters, run_.ranks())) {
    // Parameters were finite when they were loaded, and only the optimizer writes them.
    std::string by;
    if (last_applied_ > 0)
      by = "; optimizer '" + run_.optimizer->instance().id() + "' wrote it, in step " + std::to_string(last_applied_) +
           " at the latest, whose loss and gradient were finite";
    throw Error(ExitCode::kNumeric, what + ", and no later step can be: the parameter " +
                                        nonfinite_text(parameters, *bad) + " is NaN or infinite" + by)
        .hint("continue from a checkpoint before this step, with a lower optimizer.lr");
  }
  if (options_.nonfinite == NonFinite::kStop)
    throw Error(ExitCode::kNumeric, what)
        .hint("lower optimizer.lr, check the data of this step, or set train.nonfinite = \"skip\"");
  if (options_.max_skipped_steps > 0 && skipped_in_a_row_ >= options_.max_skipped_steps)
    throw Error(ExitCode::kNumeric, what + "; " + std::to_string(skipped_in_a_row_) +
                                        " steps in a row were skipped, train.max_skipped_steps is " +
                                        std::to_string(options_.max_skipped_steps))
        .hint("lower optimizer.lr, check the data, or raise train.max_skipped_steps");
  counted_warning("non-finite step skipped", what);
}

EvalRecord evaluate(Session& session, ObjectiveStep* objective, EvalData& data) {
  const int64_t micro_batch_size = session.settings().train.micro_batch_size;
  const int64_t max_batches = session.settings().eval.max_batches;
  const Ranks ranks = session.ranks();
  Stopwatch watch;
  EvalRecord record;
  std::array<double, 2> sums{};
  auto& [losses, trained] = sums;  // the sum of losses; trained tokens
  data.rewind();
  const int num_ranks = ranks.num_data_ranks();
  int64_t batches = 0;
  const auto next_batch = [&](bool is_mine) -> std::optional<Batch> {
    if (max_batches != 0 && batches == max_batches) return std::nullopt;
    ++batches;
    return is_mine ? data.next(micro_batch_size) : data.skip(micro_batch_size);
  };
  for (bool more = true; more;) {
    // One batch for each rank. All ranks run equally often: a rank for which no batch is left runs padding.
    std::optional<Batch> mine, other;
    int taken = 0;
    uint64_t trained_tokens = 0;  // over all ranks
    for (; taken < num_ranks; ++taken) {
      const bool is_mine = taken == ranks.data_rank();
      auto batch = next_batch(is_mine);
      more = batch.has_value();
      if (!more) break;
      trained_tokens += batch->num_trained_tokens;
      (is_mine ? mine : other) = std::move(batch);
    }
    if (taken == 0) break;
    if (trained_tokens == 0 && objective == nullptr) continue;
    if (!mine) mine = data.padding(*other);
    if (objective != nullptr) {
      objective->add(*mine);
      continue;
    }
    const Tensor loss = session.executor().loss(to_fields(*mine, session.device()));
    const double value = loss ? loss.item() : 0.0;
    if (!ranks.counts_rows()) continue;
    losses += value;
    trained += static_cast<double>(mine->num_trained_tokens);
  }
  if (objective != nullptr) {
    ObjectiveStep::Evaluation result = objective->finish();
    if (result.num_units == 0) throw no_content(data, "sequence");
    record.loss = result.loss;
    record.num_units = result.num_units;
    record.objective = std::move(result.metrics);
    record.seconds = watch.lap() / 1000.0;
    return record;
  }
  ranks.events().finish_step();
  ranks.sum(sums, "evaluation");
  record.trained_tokens = static_cast<uint64_t>(trained);
  if (record.trained_tokens == 0) throw no_content(data, "trained token");
  record.loss = losses / trained;
  record.perplexity = std::exp(record.loss);
  record.seconds = watch.lap() / 1000.0;
  return record;
}

}  // namespace chassis
