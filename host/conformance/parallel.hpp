// Whether a parallel strategy keeps the promises of its header, on a simulated mesh of four ranks over a backend that
// moves nothing: one rank after the other in this process, through the same stack that trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/plugin/instance.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

using MakeInstance = std::function<std::unique_ptr<Instance>()>;

// [step] Everything that is wrong, with the rank, the event and the parameter; empty if nothing is. `strategy` makes
// active instances of the strategy, `backend` of a comm backend that moves nothing; what that one writes of its calls
// goes to `metrics`. Over a small program with a tied, a frozen and an uneven parameter, in fp32 and bf16, with and
// without recomputation and accumulation, several steps and an evaluation:
//   - it claims its axis, and places every parameter once; the shards of all ranks cover every element exactly
//   - every rank places alike, and asks for the same collectives in the same order at the same events
//   - parameters are whole when a unit runs forward and backward; gradients of all that is trained are reduced when
//     finish_grads returns; resident copies are up to date after an update; nothing stays gathered after drain
std::vector<std::string> parallel_failures(const MakeInstance& strategy, const MakeInstance& backend,
                                           MetricsStore& metrics);

}  // namespace chassis
