// Parameters that are NaN or infinite, found where they come in and before they go out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/program/parameters.hpp"
#include "host/session/ranks.hpp"
#include "host/session/session.hpp"

namespace chassis {

// The first element of what is stored that is not finite: by parameter in the order of the model, then by its place in
// the whole tensor.
struct NonFiniteElement {
  size_t parameter = 0;  // index into ParameterTable::all()
  int64_t index = 0;     // in row-major order of the logical tensor
  bool operator<(const NonFiniteElement& other) const {
    return parameter != other.parameter ? parameter < other.parameter : index < other.index;
  }
};

// Of this rank. Reads every parameter once, through small temporaries.
std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters);
// [step][all-ranks] Of all ranks, the same on all.
std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters, const Ranks& ranks);
// "'layers.3.mlp.up_proj.weight' at [3, 5]"
std::string nonfinite_text(const ParameterTable& parameters, const NonFiniteElement& element);

// [all-ranks] Throws a numeric error that names the first element, on all ranks, if there is one. `what` begins the
// message: "the weights loaded from models/x".
void require_finite(Session& session, const std::string& what,
                    const std::string& hint = "go on from an earlier checkpoint, or from other weights");
// The same of what a step has left, whose loss and gradient were finite: names the optimizer.
void require_finite_after(Session& session, int64_t step);
// The same of the optimizer's states: the first tensor, in the order of the states.
void require_finite_states(Session& session, const std::string& what, const std::string& hint);

}  // namespace chassis
