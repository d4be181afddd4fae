// A fixed batch that the state before a swap and the state after it compute: the loss and the gradient must be the
// same, since only the way of computing them has changed.
#pragma once

#include <cstdint>
#include <string>

#include "host/compile/layout_pass.hpp"
#include "host/data/batch.hpp"
#include "host/session/run_state.hpp"
#include "host/session/session.hpp"

namespace chassis {

class SwapWitness {
 public:
  // One row of two documents, of 64 tokens where train.seq_len and the axes of both layouts allow it.
  SwapWitness(const Session& session, const ProgramLayout& next);

  struct Seen {
    double loss = 0.0;  // mean over the tokens
    double grad_norm = 0.0;
  };
  // [step][all-ranks] Runs forward and backward, and changes no parameter. `num_micro_batches`: those of a step.
  Seen look(const RunState& state, int64_t step, int64_t num_micro_batches, uint64_t seed) const;

  // Empty if both may be results of the same computation, else the difference and the bound. `is_bf16`: of the
  // computation, whose rounding depends on the order of sums.
  static std::string difference(const Seen& before, const Seen& after, bool is_bf16);

 private:
  Batch batch_;
};

}  // namespace chassis
