// The inner loops of this plugin, over rows in host memory: one table for each instruction set. They compute in fp32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "chassis/simd.hpp"

namespace grouped {

using Bf16 = uint16_t;  // the upper half of an fp32

// Loops over rows of fp32 or bf16. A bf16 result is rounded once, to the nearest, ties to even.
template <typename T>
struct RowLoops {
  // sum += w · x
  void (*add_scaled)(const T* x, float w, float* sum, int64_t n);
  // y = w · x, and y + w · x if it adds. y may be x.
  void (*scale)(const T* x, float w, T* y, bool adds, int64_t n);
  void (*scale_wide)(const float* x, float w, T* y, bool adds, int64_t n);
  // Σ a · b
  float (*dot)(const T* a, const T* b, int64_t n);
  float (*dot_wide)(const float* a, const T* b, int64_t n);
  // y = f(gate) · up, and the gradients.
  void (*silu_mul)(const T* gate, const T* up, T* y, int64_t n);
  void (*silu_mul_backward)(const float* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n);
  void (*gelu_tanh_mul)(const T* gate, const T* up, T* y, int64_t n);
  void (*gelu_tanh_mul_backward)(const float* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t n);
};

struct Loops {
  RowLoops<float> f32;
  RowLoops<Bf16> bf16;
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

// Those of the best instruction set of this processor.
inline const Loops& best_loops() {
  static const Loops& best = chassis::for_best_isa([](auto isa) -> const Loops& { return loops(isa); });
  return best;
}

template <typename T>
const RowLoops<T>& row_loops() {
  if constexpr (std::is_same_v<T, float>)
    return best_loops().f32;
  else
    return best_loops().bf16;
}

}  // namespace grouped
