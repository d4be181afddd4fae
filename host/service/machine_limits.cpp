// Products by gemm(), so that the limit is that of the products of a run; the best of several rounds.
#include "host/service/machine_limits.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "host/service/gemm.hpp"
#include "host/service/threads.hpp"

namespace chassis {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kDuration{500};

// The best rate of `work` per call.
template <typename Call>
double best_rate(double work, Call&& call) {
  double best = 0.0;
  for (const auto end = Clock::now() + kDuration; best == 0.0 || Clock::now() < end;) {
    const auto start = Clock::now();
    call();
    best = std::max(best, work / std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double best_product(Dtype dtype) {
  constexpr int64_t kSize = 1024;
  const bool is_bf16 = dtype == Dtype::bf16;
  // Values near 1, not 0: some processors multiply zeros with less power, and so faster.
  std::vector<float> a(kSize * kSize), b(a.size()), c(a.size());
  std::vector<uint16_t> half(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = b[i] = 1.0f + static_cast<float>(i % 251) / 256.0f;
    uint32_t bits = 0;
    std::memcpy(&bits, &a[i], sizeof bits);
    half[i] = static_cast<uint16_t>(bits >> 16);
  }
  chassis_gemm_problem_t problem{};
  problem.struct_size = sizeof problem;
  problem.a_dtype = problem.b_dtype = is_bf16 ? CHASSIS_DTYPE_BF16 : CHASSIS_DTYPE_F32;
  problem.c_dtype = CHASSIS_DTYPE_F32;
  problem.device_type = CHASSIS_DEVICE_CPU;
  problem.m = problem.n = problem.k = problem.lda = problem.ldb = problem.ldc = kSize;
  problem.a = is_bf16 ? static_cast<const void*>(half.data()) : a.data();
  problem.b = is_bf16 ? static_cast<const void*>(half.data()) : b.data();
  problem.c = c.data();
  problem.alpha = 1.0f;
  const Bf16Method method = bf16_method(problem);
  return best_rate(2.0 * kSize * kSize * kSize, [&] { gemm(problem, method); });
}

double best_copy() {
  constexpr int64_t kBytes = int64_t{128} << 20;  // more than most caches
  const std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes);
  return best_rate(2.0 * kBytes, [&] {
    run_parallel(kBytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  });
}

}  // namespace

MachineLimits measure_limits(Dtype dtype) { return {best_product(dtype), best_copy()}; }

}  // namespace chassis
