// Fills the row with tokens that depend only on the vocabulary.
#include "host/train/swap_witness.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "host/base/batch_fields.hpp"
#include "host/base/hash.hpp"
#include "host/session/fields.hpp"
#include "host/session/run_data.hpp"

namespace chassis {
namespace {

constexpr int64_t kTokens = 64;

int64_t num_tokens(int64_t seq_len, const ProgramLayout& before, const ProgramLayout& after) {
  const int64_t multiple = std::lcm(multiple_of_axes(&before), multiple_of_axes(&after));
  return seq_len % kTokens == 0 && kTokens % multiple == 0 ? kTokens : seq_len;
}

}  // namespace

SwapWitness::SwapWitness(const Session& session, const ProgramLayout& next) {
  const Program& program = session.program();
  const int64_t length = num_tokens(session.settings().train.seq_len, session.compiled().layout(), next);
  batch_ = Batch(1, length, 0, field_names(program), largest_sizes(program, 0, 0));
  const auto vocab = static_cast<uint64_t>(vocab_size(program));
  int32_t document = 0;
  for (int64_t begin = 0; begin < length; begin = document == 1 ? length / 2 : length) {
    const int64_t end = document == 0 && length > 1 ? length / 2 : length;
    std::vector<int32_t> ids, targets;
    for (int64_t i = begin; i < end; ++i)
      ids.push_back(static_cast<int32_t>(hash64("token", static_cast<uint64_t>(i)) % vocab));
    targets.assign(ids.begin() + 1, ids.end());
    targets.push_back(kIgnoreLabel);
    batch_.num_trained_tokens += ids.size() - 1;
    BatchRow(batch_, 0).write({.ids = ids, .targets = targets, .document = document}, static_cast<size_t>(begin));
    ++document;
  }
  batch_.num_tokens = static_cast<uint64_t>(length);
}

SwapWitness::Seen SwapWitness::look(const RunState& state, int64_t step, int64_t num_micro_batches,
                                    uint64_t seed) const {
  const StepParts parts = state.step_parts();
  // A schedule of a pipeline may need as many micro-batches as a step has.
  const int64_t count = parts.ranks.plan.pipeline().divides() ? num_micro_batches : 1;
  StepInputs inputs;
  inputs.step = step;
  inputs.schedule = parts.ranks.work(count);
  inputs.fields = [&](int) { return to_fields(batch_, parts.device); };
  inputs.random = [&](int) -> RandomBits { return {hash64("witness", seed), 0}; };
  const auto trained = static_cast<double>(std::max<uint64_t>(1, batch_.num_trained_tokens));
  inputs.loss_scale = 1.0 / (trained * static_cast<double>(count * parts.ranks.num_data_ranks()));
  inputs.updates = false;
  const StepResult result = run_step(parts, inputs);
  return {result.loss, result.grad_norm};
}

std::string SwapWitness::difference(const Seen& before, const Seen& after, bool is_bf16) {
  const double loss_bound = is_bf16 ? 2e-2 : 1e-5, norm_bound = is_bf16 ? 1e-1 : 1e-3;
  const auto differs = [](double a, double b, double bound) {
    return !std::isfinite(a) || !std::isfinite(b) || std::abs(b - a) > bound * std::max(std::abs(a), 1e-6);
  };
  if (differs(before.loss, after.loss, loss_bound))
    return fmt::format("the loss of the witness batch was {:.9g}, and is {:.9g} after the swap; {:g} of it is allowed",
                       before.loss, after.loss, loss_bound);
  if (differs(before.grad_norm, after.grad_norm, norm_bound))
    return fmt::format(
        "the gradient norm of the witness batch was {:.9g}, and is {:.9g} after the swap; {:g} of it is allowed",
        before.grad_norm, after.grad_norm, norm_bound);
  return "";
}

}  // namespace chassis
