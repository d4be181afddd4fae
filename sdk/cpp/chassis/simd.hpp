// fp32 loops for the CPU, compiled once for each instruction set; the best version is chosen at run time.
//
//   chassis_add_plugin(my_ops SOURCES plugin.cpp ISA_SOURCES loops.cpp)
//
// compiles loops.cpp once for each of the structs below that the processor family has; ThisIsa is the one being
// compiled for. A plugin declares its loops as a table, defines one table per instruction set, and selects the best:
//
//   loops.hpp   struct Loops { void (*add)(const float* a, float* sum, int64_t n); };
//               const Loops& loops(chassis::isa::Baseline);
//               const Loops& loops(chassis::isa::Avx2);
//               const Loops& loops(chassis::isa::Avx512);
//   loops.cpp   const Loops& loops(chassis::ThisIsa) { static constexpr Loops table = {add}; return table; }
//   plugin.cpp  const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
//
// Everything else in such a source belongs in an anonymous namespace: the linker keeps one copy of an inline function,
// which may be compiled for an instruction set that the processor does not have.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// Instruction sets, with the size and the minimum number of their vector registers.
namespace isa {
struct Baseline {  // any processor
  static constexpr int kVectorBytes = 16, kNumRegisters = 16;
};
struct Avx2 {  // x86-64-v3
  static constexpr int kVectorBytes = 32, kNumRegisters = 16;
};
struct Avx512 {  // x86-64-v4
  static constexpr int kVectorBytes = 64, kNumRegisters = 32;
};
}  // namespace isa

#ifdef CHASSIS_ISA
using ThisIsa = isa::CHASSIS_ISA;
#endif

// [any] Calls visit(isa) with the best instruction set of this processor.
template <typename Visit>
decltype(auto) for_best_isa(Visit&& visit) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return visit(isa::Avx512{});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    return visit(isa::Avx2{});
#endif
  return visit(isa::Baseline{});
}

// x - k·ln2, with ln2 in two parts. Rationale: gcc, which may reorder sums here, would add the parts first and lose
// 60 ulp of e^x; it does not reorder fused products or across its barrier.
[[gnu::always_inline]] static inline float minus_multiple_of_ln2(float x, float k) {
  constexpr float kHigh = 0.693359375f, kLow = -2.12194440e-4f;
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(k, -kLow, __builtin_fmaf(k, -kHigh, x));
#elif defined(__clang__)
  return (x - k * kHigh) - k * kLow;
#else
  return __builtin_assoc_barrier(x - k * kHigh) - k * kLow;
#endif
}

// e^x within 2 ulp for x in [-87, 88], 0 below, e^88 above: 2^k times a polynomial of degree 6 on [-ln2/2, ln2/2]
// (Cephes expf). Free of branches, so that compilers vectorise loops over it.
[[gnu::always_inline]] static inline float exponential(float x) {
  const float clamped = std::min(std::max(x, -87.3f), 88.0f);
  const float k = std::floor(clamped * 1.44269504088896341f + 0.5f);
  const float r = minus_multiple_of_ln2(clamped, k);
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float value = (p * r * r + r + 1.0f) * std::bit_cast<float>((static_cast<int32_t>(k) + 127) << 23);
  return x < -87.3f ? 0.0f : value;
}

// tanh within 4 ulp: an odd polynomial below 0.625 (Cephes tanhf), else computed from e^(2x).
[[gnu::always_inline]] static inline float hyperbolic_tangent(float x) {
  const float size = std::abs(x), square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float large = std::copysign(1.0f - 2.0f / (exponential(2.0f * size) + 1.0f), x);
  return size < 0.625f ? x + x * square * p : large;
}

CHASSIS_SDK_END
