// How much each unit of a program computes; matrix products only.
#pragma once

#include <cstdint>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// Multiplications and additions of forward and backward, by unit, per token of rows of `time` tokens. The gradients of
// weights that are not trained are not computed.
std::vector<double> unit_flops(const Program& program, const ParameterTable& parameters, int64_t time);
// The same of all units together, if all are trained.
double flops_per_token(const Program& program, int64_t time);

}  // namespace chassis
