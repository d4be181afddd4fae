// Steps of AdamW over blocks of 8-bit states, for each instruction set. All give the same bits.
#pragma once

#include <cstdint>

#include "chassis/adamw.hpp"
#include "chassis/simd.hpp"
#include "codes.hpp"
#include "rows.hpp"

namespace adamw8bit {

struct Loops {
  // Elements [begin, end); begin is at a block.
  void (*step_blocks)(const Rows& rows, int64_t begin, int64_t end, const Coefficients& k, Order order,
                      const CodeTable& signed_code, const CodeTable& unsigned_code);
  // Steps fp32 states, as the plugin adamw does.
  void (*step_fp32)(float* p, const float* g, float* m, float* v, int64_t count, const chassis::AdamWCoefficients& k);
  // As step_fp32, in the order of bitsandbytes.
  void (*step_fp32_bnb)(float* p, const float* g, float* m, float* v, int64_t count, const Coefficients& k);
};

const Loops& loops(chassis::isa::Baseline);
const Loops& loops(chassis::isa::Avx2);
const Loops& loops(chassis::isa::Avx512);

}  // namespace adamw8bit
