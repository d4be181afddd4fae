// One training step, in the order in which it happens.
#include "host/session/step.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "host/base/error.hpp"
#include "host/service/device.hpp"
#include "host/service/step_place.hpp"

namespace chassis {
namespace {

void notify(const StepInputs& inputs, StepPhase phase, int microbatch = 0) {
  if (inputs.observer) inputs.observer(phase, microbatch);
}

// A rehearsal has no loss.
double value_of(const Tensor& loss) { return loss.device().type == Device::Type::kMeta ? 0.0 : loss.item(); }

// Gives the executor the gradients of an objective.
double loss_of(Executor& executor, const StepInputs& inputs, int microbatch, const StreamValues& outputs) {
  if (!inputs.objective) return value_of(outputs.at(kLossOutput));
  ObjectiveValue value = inputs.objective(microbatch, outputs);
  executor.set_output_gradients(microbatch, std::move(value.gradients));
  return value.loss;
}

// Accumulates gradients over the schedule. Returns the sum of this rank's losses.
double run_microbatches(Executor& executor, ParameterTable& parameters, const StepInputs& inputs) {
  parameters.start_step();
  const std::vector<uint8_t> last = last_of_chunk(inputs.schedule);
  double loss_sum = 0.0;
  for (size_t i = 0; i < inputs.schedule.size(); ++i) {
    const Work& work = inputs.schedule[i];
    if (work.kind == Work::Kind::kForward) {
      const Fields fields = inputs.fields(work.microbatch);
      const RandomBits random = inputs.random ? inputs.random(work.microbatch) : RandomBits{};
      if (const StreamValues outputs = executor.forward_stage(work, fields, inputs.loss_scale, random);
          !outputs.empty())
        loss_sum += loss_of(executor, inputs, work.microbatch, outputs);
      notify(inputs, StepPhase::kForward, work.microbatch);
    } else {
      executor.backward_stage(work, last[i] != 0);
      notify(inputs, StepPhase::kBackward, work.microbatch);
    }
  }
  return loss_sum;
}

}  // namespace

StepResult run_step(const StepParts& parts, const StepInputs& inputs) {
  const auto& [executor, parameters, optimizer, ranks, device] = parts;
  const double loss_sum = run_microbatches(executor, parameters, inputs);
  enter_phase("reduction of gradients");
  ranks.events().finish_grads();
  notify(inputs, StepPhase::kReduction);

  // Loss and squared gradient norm are sums over all ranks. If one part is not finite, the sum is not finite on any
  // rank, so all ranks step or none does. The same collective carries the requests of the ranks.
  const StepRequests own = inputs.requests ? inputs.requests() : StepRequests{};
  constexpr size_t kOwnSums = 6;
  std::vector<double> sums = {ranks.counts_rows() ? loss_sum : 0.0,
                              sum_of_squares(optimizer.trained()),
                              own.stop ? 1.0 : 0.0,
                              own.save ? 1.0 : 0.0,
                              own.swap ? 1.0 : 0.0,
                              own.ready ? 0.0 : 1.0};
  if (inputs.sums) std::ranges::copy(inputs.sums(), std::back_inserter(sums));
  ranks.sum(sums, "loss, gradient norm and requests");
  const double losses = sums[0], squares = sums[1];
  const double num_stop = sums[2], num_save = sums[3], num_swap = sums[4], num_not_ready = sums[5];
  StepResult result;
  result.sums.assign(sums.begin() + kOwnSums, sums.end());
  result.loss = losses * inputs.loss_scale;
  result.grad_norm = std::sqrt(squares);
  result.requests = {num_stop > 0.0, num_save > 0.0, num_swap > 0.0, num_not_ready == 0.0};
  result.applied = std::isfinite(result.loss) && std::isfinite(result.grad_norm);

  result.applied = result.applied && inputs.updates;
  if (result.applied) {
    const double limit = inputs.max_grad_norm;
    const double grad_scale = limit > 0.0 ? std::min(1.0, limit / (result.grad_norm + 1e-6)) : 1.0;
    if (inputs.before_update) inputs.before_update();
    enter_phase("optimizer");
    optimizer.step(inputs.step, inputs.lr, grad_scale);
    notify(inputs, StepPhase::kUpdate);
    enter_phase("refresh of parameters");
    ranks.events().refresh();
  }
  ranks.events().finish_step();
  synchronize(device);
  ranks.communicator.throw_if_failed();
  notify(inputs, StepPhase::kEnd);
  enter_phase("");
  return result;
}

}  // namespace chassis
