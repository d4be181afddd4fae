// Values of bf16, the upper half of an fp32, in loops that compilers vectorise. The functions have internal linkage,
// since the files of a plugin may be compiled for different processors.
#pragma once

#include <bit>
#include <cstdint>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

[[gnu::always_inline]] static inline float from_bf16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// Rounds to the nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] static inline uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : nearest);
}

CHASSIS_SDK_END
