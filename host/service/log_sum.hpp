// Sums of exponentials, kept as their logarithms.
#pragma once

#include "host/service/tensor.hpp"

namespace chassis {

// log Σ exp of [rows, …] over the rows; -inf where all are.
Tensor log_sum_of_rows(const Tensor& log_sums);
// The gradient of one term: gradient · exp(own - whole), where `whole` is the log sum that `own` is a term of.
Tensor log_sum_gradient(const Tensor& gradient, const Tensor& own, const Tensor& whole);

// Adds attention over more keys to that over some: `output` [B, T, h, D] in fp32 and `log_sum` [B, h, T] become those
// of both.
void merge_attention(const Tensor& output, const Tensor& log_sum, const Tensor& more_output,
                     const Tensor& more_log_sum);
// The same with +inf for -inf, so that no key has a probability where a query sees none.
Tensor log_sum_for_backward(const Tensor& log_sum);

}  // namespace chassis
