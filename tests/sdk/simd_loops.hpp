// Loops over exponential() and hyperbolic_tangent(), built for each instruction set.
#pragma once

#include "chassis/simd.hpp"

struct Loops {
  int vector_bytes;
  void (*exponentials)(const float* x, float* y, int64_t n);
  void (*tangents)(const float* x, float* y, int64_t n);
};
const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);
