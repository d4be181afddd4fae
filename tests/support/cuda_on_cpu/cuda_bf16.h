// CUDA's bf16 for kernels that run on the CPU.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float x) : bits(rounded(x)) {}
  explicit operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, sizeof x);
    return x;
  }
  uint16_t bits;

 private:
  // To the nearest, ties to even. Every NaN becomes 0x7fff, as in CUDA.
  static uint16_t rounded(float x) {
    uint32_t wide;
    std::memcpy(&wide, &x, sizeof wide);
    if ((wide & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
};

inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline float __bfloat162float(__nv_bfloat16 x) { return static_cast<float>(x); }
