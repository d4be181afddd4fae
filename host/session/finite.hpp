// Finds parameters and optimizer states that are NaN or infinite: after they are loaded, and before they are saved.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/compile/parameters.hpp"
#include "host/launch/world.hpp"
#include "host/session/placed_optimizer.hpp"
#include "host/session/ranks.hpp"
#include "host/session/run_state.hpp"

namespace chassis {

// The first stored element that is not finite: by parameter in the order of the model, then by its position in the
// whole tensor.
struct NonFiniteElement {
  size_t parameter = 0;  // index into ParameterTable::all()
  int64_t index = 0;     // in row-major order of the logical tensor
  bool operator<(const NonFiniteElement& other) const {
    return parameter != other.parameter ? parameter < other.parameter : index < other.index;
  }
};

// The first one on this rank. Reads every parameter once, through small temporaries.
std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters);
// [step][all-ranks] The first one on any rank; the result is the same on all ranks.
std::optional<NonFiniteElement> find_nonfinite(const ParameterTable& parameters, const Ranks& ranks);
// "'layers.3.mlp.up_proj.weight' at [3, 5]"
std::string nonfinite_text(const ParameterTable& parameters, const NonFiniteElement& element);

// [all-ranks] Throws a numeric error on all ranks that names the first parameter element that is not finite, if any.
// `what` begins the message: "the weights loaded from models/x".
void require_finite(const ParameterTable& parameters, World& world, const std::string& what,
                    const std::string& hint = "continue from an earlier checkpoint, or from other weights");
// The same for the parameters after a step whose loss and gradient were finite; the message names the optimizer.
void require_finite_after(const RunState& state, World& world, int64_t step);
// The same for optimizer states: names the first tensor, in the order of the states, on the first rank that has one.
void require_finite_states(const PlacedOptimizer& optimizer, World& world, const std::string& what,
                           const std::string& hint);

}  // namespace chassis
