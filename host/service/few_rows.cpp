// Chooses the loops of this processor, and divides the columns among the threads.
#include "host/service/few_rows.hpp"

#include <algorithm>

#include "chassis/tensor.h"
#include "host/service/few_rows_loops.hpp"
#include "host/service/product.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

using Problem = chassis_gemm_problem_t;

// Without functions if this processor has none of the instruction sets.
const FewRowsLoops& loops() {
  static const FewRowsLoops chosen = [] {
#if defined(__x86_64__)
    if (can_multiply<uint16_t>()) return few_rows_avx512_bf16();
    if (can_multiply<float>()) return few_rows_avx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
      return few_rows_avx2();
#endif
    return FewRowsLoops{};
  }();
  return chosen;
}

template <typename T>
void run(const Problem& p, void (*columns)(const FewRowsProblem<T>&, int64_t, int64_t)) {
  const FewRowsProblem<T> problem{
      p.m,   p.n, p.k,   static_cast<const T*>(p.a),      p.lda,   static_cast<const T*>(p.b),
      p.ldb, p.c, p.ldc, p.c_dtype == CHASSIS_DTYPE_BF16, p.alpha, p.beta};
  // A thread that reads less than this takes longer to start.
  constexpr int64_t kBytesOfThread = 64 << 10;
  const int64_t tiles = (p.n + kFewRowsColumns - 1) / kFewRowsColumns;
  const int64_t bytes_of_tile = kFewRowsColumns * p.k * static_cast<int64_t>(sizeof(T));
  const int64_t grain =
      std::max({int64_t{1}, (tiles + num_threads() - 1) / num_threads(), kBytesOfThread / bytes_of_tile});
  run_parallel(tiles, grain, [&](int64_t begin, int64_t end) {
    columns(problem, begin * kFewRowsColumns, std::min(end * kFewRowsColumns, p.n));
  });
}

}  // namespace

bool has_few_rows(const Problem& p) {
  const bool is_one_dtype = p.a_dtype == p.b_dtype && (p.c_dtype == p.a_dtype || p.c_dtype == CHASSIS_DTYPE_F32);
  return loops().fp32 != nullptr && is_one_dtype && p.flags == CHASSIS_GEMM_TRANSPOSE_B && p.m > 0 && p.m <= kFewRows &&
         p.n > 0 && p.k > 0;
}

void multiply_few_rows(const Problem& p) {
  if (p.a_dtype == CHASSIS_DTYPE_F32)
    run<float>(p, loops().fp32);
  else
    run<uint16_t>(p, loops().bf16);
}

}  // namespace chassis
