// The values of a reference that is computed once, before training (reference.mode = "precompute"): a forward pass over
// all data, divided between the data-parallel ranks, whose results are kept in the data cache. Training then has
// neither a copy of the model nor a program for it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/data/eval_data.hpp"
#include "host/data/train_data.hpp"
#include "host/session/session.hpp"

namespace chassis {

// True if the objective of the session compares with a reference that is computed before training. Throws as
// reference_purpose(), and if the reference has no program, so that this comes before anything is allocated.
bool precomputes_reference(const Session& session);

// [control][all-ranks] The hash of the model that the objective compares with: its weights and what computes it.
std::string reference_model_hash(Session& session);

// [control][all-ranks] After the session's allocate(). Gives every set of `train`, which may be NULL, and of `eval` the
// values of the reference: those that are kept for the same data and the same model, or new ones. Calls `fill`
// [all-ranks], which fills the parameters of the session with those of the reference, only if values are missing.
// Returns the hash of the part of the key that the sets share: the model, its weights and what computes it.
std::string precompute_reference(Session& session, TrainData* train, const std::vector<std::unique_ptr<EvalData>>& eval,
                                 const std::function<void()>& fill);

}  // namespace chassis
