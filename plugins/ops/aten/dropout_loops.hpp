// The inner loops of dropout on the CPU: one table for each instruction set.
#pragma once

#include <cstdint>

#include "chassis/simd.hpp"

namespace aten {

constexpr int kDrawnCounters = 64, kDrawnWords = 4 * kDrawnCounters;  // of one call of draw()

struct DropoutLoops {
  // The words of Philox4x32-10 for the counters {first + i, time, low and high half of row}, i < kDrawnCounters.
  void (*draw)(uint64_t key, uint32_t first, uint32_t time, uint64_t row, uint32_t* words);
  // y[i] = carry[i] + x[i] · scale if words[i] >= threshold, else carry[i]; a NULL carry is 0. y may be x or carry.
  void (*apply_f32)(const float* x, const uint32_t* words, uint32_t threshold, double scale, const float* carry,
                    float* y, int64_t n);
  void (*apply_f64)(const double* x, const uint32_t* words, uint32_t threshold, double scale, const double* carry,
                    double* y, int64_t n);
  void (*apply_bf16)(const uint16_t* x, const uint32_t* words, uint32_t threshold, double scale, const uint16_t* carry,
                     uint16_t* y, int64_t n);
};

const DropoutLoops& dropout_loops(chassis::isa::Baseline);
const DropoutLoops& dropout_loops(chassis::isa::Avx2);
const DropoutLoops& dropout_loops(chassis::isa::Avx512);

}  // namespace aten
