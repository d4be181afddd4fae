// Products of few rows with a matrix whose columns lie in memory one after another, as in the linears of generation:
// their time is that of reading the matrix once.
#pragma once

#include <cstdint>

#include "chassis/service/gemm.h"

namespace chassis {

inline constexpr int64_t kFewRows = 16;

// True if multiply_few_rows() computes this problem on this processor, and faster than LibTorch: A has at most kFewRows
// rows, B is stored transposed, both are of one dtype. Sizes, pointers and flags are valid.
bool has_few_rows(const chassis_gemm_problem_t& problem);

// [step] Computes on the host's threads, without further memory. An element of C has the same bits whatever the number
// of rows and of threads: its terms are summed in an order that depends on k alone.
void multiply_few_rows(const chassis_gemm_problem_t& problem);

}  // namespace chassis
