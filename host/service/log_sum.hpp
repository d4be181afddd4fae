// Sums of exponentials, kept as their logarithms.
#pragma once

#include "host/service/tensor.hpp"

namespace chassis {

// log Σ exp of [rows, …] over the rows; -inf where all are.
Tensor log_sum_of_rows(const Tensor& log_sums);
// The gradient of one term: gradient · exp(own - whole), where `whole` is the log sum that `own` is a term of.
Tensor log_sum_gradient(const Tensor& gradient, const Tensor& own, const Tensor& whole);

}  // namespace chassis
