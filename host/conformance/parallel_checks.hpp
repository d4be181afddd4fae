// Conformance tests of a parallel strategy, on a simulated mesh of four ranks with a backend that moves nothing. The
// ranks run one after the other in this process, through the stack that training uses.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/plugin/instance.hpp"
#include "host/service/metrics.hpp"

namespace chassis {

using MakeInstance = std::function<std::unique_ptr<Instance>()>;

// [step] All failures, with the rank, the event and the parameter; empty if none. `strategy` makes active instances of
// the strategy, `backend` of a comm backend that moves nothing; `metrics` receives the metrics of that backend's calls.
// Runs several steps and evaluations of a small program with a tied, a frozen and an uneven parameter, in fp32 and
// bf16, with and without recomputation and accumulation. Tests:
//   - it claims its axis and places every parameter once; the shards of all ranks cover every element exactly once
//   - all ranks have the same placements, and the same collectives in the same order at the same events
//   - parameters are gathered when a unit runs forward and backward; the gradients of all trained parameters are
//     reduced when finish_grads returns; resident copies are up to date after an update; nothing stays gathered after
//     drain
std::vector<std::string> parallel_failures(const MakeInstance& strategy, const MakeInstance& backend,
                                           MetricsStore& metrics);

}  // namespace chassis
