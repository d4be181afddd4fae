// Loops over fp32 on the CPU that are compiled once for each instruction set, and the best of them chosen at run time.
//
//   chassis_add_plugin(my_ops SOURCES plugin.cpp ISA_SOURCES loops.cpp)
//
// compiles loops.cpp for each of the structs below that the processor family has; there ThisIsa is the one it is being
// compiled for. A plugin declares its loops as a table, gives it out by instruction set, and asks for the best:
//
//   loops.hpp   struct Loops { void (*add)(const float* a, float* sum, int64_t n); };
//               const Loops& loops(chassis::isa::Baseline);
//               const Loops& loops(chassis::isa::Avx2);
//               const Loops& loops(chassis::isa::Avx512);
//   loops.cpp   const Loops& loops(chassis::ThisIsa) { static constexpr Loops table = {add}; return table; }
//   plugin.cpp  const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
//
// Everything else in such a source belongs into an anonymous namespace: of an inline function the linker keeps one
// copy, perhaps that of an instruction set which the processor lacks.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

// Instruction sets, with the size of their vector registers and how many of those there are at least.
namespace isa {
struct Baseline {  // of any processor
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

// [any] visit(isa), with the best that this processor runs.
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

// x - k·ln2, of which ln2 is given in two parts. Rationale: gcc, which is told to reorder sums, would add the parts up
// first and lose 60 ulp of e^x; fused products and its barrier are left as they are.
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
// (Cephes expf). Without a branch, so that compilers vectorise loops over it.
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

CHASSIS_SDK_END
