// Vectors of fp32 and int32 of the instruction set that is compiled for. Every operation rounds as IEEE 754 says.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__AVX2__)
// gcc 12 declares the undefined vectors of its own header as initialized with themselves.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace {

#if defined(__AVX512F__)
struct Lanes {
  static constexpr int64_t kWidth = 16;
  using F = __m512;
  using I = __m512i;
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static I load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_bytes(uint8_t* p, I x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x)); }
  static F splat(float x) { return _mm512_set1_ps(x); }
  static I splat(int32_t x) { return _mm512_set1_epi32(x); }
  static F gather(const float* table, I at) { return _mm512_i32gather_ps(at, table, 4); }
  static I gather(const int32_t* table, I at) { return _mm512_i32gather_epi32(at, table, 4); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F multiply(F a, F b) { return _mm512_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm512_div_ps(a, b); }
  static F root(F a) { return _mm512_sqrt_ps(a); }
  static I bits(F x) { return _mm512_castps_si512(x); }
  static F value(I x) { return _mm512_castsi512_ps(x); }
  static I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  static I bit_xor(I a, I b) { return _mm512_xor_si512(a, b); }
  static I and_not(I a, I b) { return _mm512_andnot_si512(a, b); }  // ~a & b
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  static I subtract(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I largest(I a, I b) { return _mm512_max_epi32(a, b); }
  static I shifted_right(I a, int32_t bits) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits)); }
  static I sign_mask(I a) { return _mm512_srai_epi32(a, 31); }  // all ones where a < 0
  static int32_t largest_of(I a) { return _mm512_reduce_max_epi32(a); }
};
#elif defined(__AVX2__)
struct Lanes {
  static constexpr int64_t kWidth = 8;
  using F = __m256;
  using I = __m256i;
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static I load_bytes(const uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_bytes(uint8_t* p, I x) {
    const __m256i words = _mm256_packus_epi32(x, x), bytes = _mm256_packus_epi16(words, words);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), both);
  }
  static F splat(float x) { return _mm256_set1_ps(x); }
  static I splat(int32_t x) { return _mm256_set1_epi32(x); }
  static F gather(const float* table, I at) { return _mm256_i32gather_ps(table, at, 4); }
  static I gather(const int32_t* table, I at) { return _mm256_i32gather_epi32(table, at, 4); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F multiply(F a, F b) { return _mm256_mul_ps(a, b); }
  static F divide(F a, F b) { return _mm256_div_ps(a, b); }
  static F root(F a) { return _mm256_sqrt_ps(a); }
  static I bits(F x) { return _mm256_castps_si256(x); }
  static F value(I x) { return _mm256_castsi256_ps(x); }
  static I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  static I bit_xor(I a, I b) { return _mm256_xor_si256(a, b); }
  static I and_not(I a, I b) { return _mm256_andnot_si256(a, b); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  static I subtract(I a, I b) { return _mm256_sub_epi32(a, b); }
  static I largest(I a, I b) { return _mm256_max_epi32(a, b); }
  static I shifted_right(I a, int32_t bits) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(bits)); }
  static I sign_mask(I a) { return _mm256_srai_epi32(a, 31); }
  static int32_t largest_of(I a) {
    alignas(32) int32_t each[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(each), a);
    int32_t out = each[0];
    for (const int32_t x : each) out = x > out ? x : out;
    return out;
  }
};
#else
struct Lanes {
  static constexpr int64_t kWidth = 1;
  using F = float;
  using I = int32_t;
  static F load(const float* p) { return *p; }
  static void store(float* p, F x) { *p = x; }
  static I load_bytes(const uint8_t* p) { return *p; }
  static void store_bytes(uint8_t* p, I x) { *p = static_cast<uint8_t>(x); }
  static F splat(float x) { return x; }
  static I splat(int32_t x) { return x; }
  static F gather(const float* table, I at) { return table[at]; }
  static I gather(const int32_t* table, I at) { return table[at]; }
  static F add(F a, F b) { return a + b; }
  static F multiply(F a, F b) { return a * b; }
  static F divide(F a, F b) { return a / b; }
  static F root(F a) { return std::sqrt(a); }
  static I bits(F x) { return std::bit_cast<int32_t>(x); }
  static F value(I x) { return std::bit_cast<float>(x); }
  static I bit_and(I a, I b) { return a & b; }
  static I bit_or(I a, I b) { return a | b; }
  static I bit_xor(I a, I b) { return a ^ b; }
  static I and_not(I a, I b) { return ~a & b; }
  static I add(I a, I b) { return a + b; }
  static I subtract(I a, I b) { return a - b; }
  static I largest(I a, I b) { return a > b ? a : b; }
  static I shifted_right(I a, int32_t bits) { return static_cast<int32_t>(static_cast<uint32_t>(a) >> bits); }
  static I sign_mask(I a) { return a >> 31; }
  static int32_t largest_of(I a) { return a; }
};
#endif

}  // namespace
