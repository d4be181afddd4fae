// Sums of exponentials, kept as their logarithms.
#pragma once

#include "host/service/tensor.hpp"

namespace chassis {

// log Σ exp of [rows, …] over the rows; -inf where all of them are -inf.
Tensor log_sum_of_rows(const Tensor& log_sums);
// The gradient of one term: gradient · exp(own - whole), where `whole` is the log sum that `own` is a term of.
Tensor log_sum_gradient(const Tensor& gradient, const Tensor& own, const Tensor& whole);

// Merges the attention over more keys into that over other keys: `output` [B, T, h, D] in fp32 and `log_sum` [B, h, T]
// become those over all of the keys.
void merge_attention(const Tensor& output, const Tensor& log_sum, const Tensor& more_output,
                     const Tensor& more_log_sum);
// `log_sum` with +inf in place of -inf, so that no key has a probability for a query that sees none.
Tensor log_sum_for_backward(const Tensor& log_sum);

}  // namespace chassis
