#include "host/train/trainer.hpp"

#include <chrono>
#include <cmath>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/service/device.hpp"
#include "host/train/fields.hpp"

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

}  // namespace

std::vector<Work> sequential_schedule(int64_t num_microbatches) {
  std::vector<Work> schedule;
  for (int m = 0; m < num_microbatches; ++m) {
    schedule.push_back({Work::Kind::kForward, m});
    schedule.push_back({Work::Kind::kBackward, m});
  }
  return schedule;
}

Trainer::Trainer(Executor& executor, ParameterTable& parameters, OptimizerDriver& optimizer, TrainData& data,
                 Device device, TrainerOptions options)
    : executor_(executor),
      parameters_(parameters),
      optimizer_(optimizer),
      data_(data),
      device_(device),
      options_(std::move(options)),
      schedule_(sequential_schedule(options_.shape.num_micro_batches)) {}

StepRecord Trainer::step() {
  StepRecord record;
  Stopwatch watch, whole;
  const StepData data = data_.next_step(options_.shape);
  record.step = state_.step + 1;
  record.tokens = data.num_tokens;
  record.trained_tokens = data.num_trained_tokens;
  record.data_ms = watch.lap();

  // One global count makes the loss the same under every accumulation, packing and strategy.
  const double loss_scale = 1.0 / static_cast<double>(data.num_trained_tokens);
  parameters_.start_step();
  double loss_sum = 0.0;
  for (const Work& work : schedule_) {
    if (work.kind == Work::Kind::kForward) {
      const Fields fields = to_fields(data.micro_batches[static_cast<size_t>(work.microbatch)], device_);
      loss_sum += executor_.forward(work.microbatch, fields, loss_scale).item();
      record.forward_ms += watch.lap();
    } else {
      executor_.backward(work.microbatch);
      record.backward_ms += watch.lap();
    }
  }

  record.loss = loss_sum * loss_scale;
  record.grad_norm = gradient_norm(optimizer_.trained());
  record.lr = options_.schedule.at(record.step);
  const bool finite = std::isfinite(record.loss) && std::isfinite(record.grad_norm);
  if (finite) {
    const double limit = options_.max_grad_norm;
    const double grad_scale = limit > 0.0 ? std::min(1.0, limit / (record.grad_norm + 1e-6)) : 1.0;
    optimizer_.step(record.step, record.lr, grad_scale);
    parameters_.publish_masters();
  } else {
    refuse_step(record);
  }
  synchronize(device_);
  record.optimizer_ms = watch.lap();

  state_.step = record.step;
  state_.tokens += record.tokens;
  state_.trained_tokens += record.trained_tokens;
  const DeviceMemory memory = device_memory(device_);
  record.peak_memory_bytes = memory.peak_active_bytes;
  record.active_memory_bytes = memory.active_bytes;
  record.reserved_memory_bytes = memory.reserved_bytes;
  record.epoch = data_.epoch();
  record.step_ms = whole.lap();
  return record;
}

void Trainer::refuse_step(StepRecord& record) {
  ++state_.skipped_steps;
  record.skipped = true;
  const std::string what = "step " + std::to_string(record.step) + ": loss " + std::to_string(record.loss) +
                           ", gradient norm " + std::to_string(record.grad_norm) + "; the step was not applied";
  if (options_.nonfinite == NonFinite::kStop)
    throw Error(ExitCode::kNumeric, what)
        .hint("lower optimizer.lr, check the data of this step, or set train.nonfinite = \"skip\"");
  counted_warning("non-finite step skipped", what);
}

EvalRecord evaluate(Executor& executor, EvalData& data, int64_t micro_batch_size, int64_t max_batches, Device device) {
  Stopwatch watch;
  EvalRecord record;
  double loss_sum = 0.0;
  data.rewind();
  for (int64_t batches = 0; max_batches == 0 || batches < max_batches; ++batches) {
    const auto batch = data.next(micro_batch_size);
    if (!batch) break;
    if (batch->num_trained_tokens == 0) continue;
    loss_sum += executor.loss(to_fields(*batch, device)).item();
    record.trained_tokens += batch->num_trained_tokens;
  }
  if (record.trained_tokens == 0)
    throw Error(ExitCode::kConfig, data.config().where, "evaluation set '" + data.config().path + "' has no trained token");
  record.loss = loss_sum / static_cast<double>(record.trained_tokens);
  record.perplexity = std::exp(record.loss);
  record.seconds = watch.lap() / 1000.0;
  return record;
}

}  // namespace chassis
