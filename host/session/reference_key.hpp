// The key of the values of a reference: all that they depend on, except rounding.
#pragma once

#include "host/base/json.hpp"
#include "host/data/packing.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The part that all sets of a run share: the model, the files of its weights, dtypes, and what computes it for
// `purpose`. Reads the beginnings and ends of these files, so only one rank should call it.
Json reference_model_key(Session& session, Purpose purpose);
// The key of one set.
Json reference_key(const Json& model, const RowSource& rows, const ObjectiveDesc& desc, int64_t seq_len);

// The permissions that the files of these weights share, as in shared_file_mode().
unsigned reference_file_mode(const Settings& settings);

}  // namespace chassis
