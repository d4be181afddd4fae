// bf16 in loops that compilers vectorise: the upper half of an fp32. The functions are part of every file that calls
// them, since files are compiled for different processors.
#pragma once

#include <bit>
#include <cstdint>

namespace interval {

using Bf16 = uint16_t;

[[gnu::always_inline]] static inline float wide(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// To the nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] static inline uint32_t rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return is_nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace interval
