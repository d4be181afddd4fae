// CUDA's fp16 for kernels that run on the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct __half {
  __half() = default;
  explicit __half(float x) : bits(rounded(x)) {}
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                      : std::ldexp(static_cast<float>(exponent == 0 ? mantissa : mantissa | 1024),
                                                   (exponent == 0 ? 1 : exponent) - 25);
    return std::copysign(size, bits & 0x8000 ? -1.0f : 1.0f);
  }
  uint16_t bits;

 private:
  // To the nearest, ties to even. Every NaN becomes 0x7fff, as in CUDA.
  static uint16_t rounded(float x) {
    uint32_t size;
    std::memcpy(&size, &x, sizeof size);
    const uint32_t sign = size >> 16 & 0x8000;
    size &= 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;
    if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
    if (size < 0x38800000)                                                // subnormal: multiples of 2^-24
      return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(std::fabs(x), 24))));
    size += 0xfff + (size >> 13 & 1);
    return static_cast<uint16_t>(sign | (size - 0x38000000) >> 13);
  }
};

inline __half __float2half_rn(float x) { return __half(x); }
inline float __half2float(__half x) { return static_cast<float>(x); }
