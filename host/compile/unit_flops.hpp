// How much each unit of a program computes; matrix products only.
#pragma once

#include <cstdint>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/graph/dim_sizes.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// Multiplications and additions of forward and backward, by unit, per token of rows of those sizes. The gradients of
// weights that are not trained are not computed.
std::vector<double> unit_flops(const Program& program, const ParameterTable& parameters, const DimSizes& sizes);
// The same of all units together, if all are trained.
double flops_per_token(const Program& program, const DimSizes& sizes);

}  // namespace chassis
