// The loops in plain C++ that compilers vectorise, and the product by AMX and by AVX512-BF16.
#include "bf16_blocks.hpp"

#include <cstring>
#include <limits>

#include "chassis/amx.hpp"

#if defined(__AVX512F__) && defined(__x86_64__)
#include <immintrin.h>
#define INTERVAL_HAS_BF16_BLOCKS 1
#endif

namespace interval {
namespace {

#ifdef INTERVAL_HAS_BF16_BLOCKS

[[gnu::target("amx-tile")]] void begin_tiles() {
  static constexpr chassis::AmxTileConfig config;
  _tile_loadconfig(&config);
}
[[gnu::target("amx-tile")]] void end_tiles() { _tile_release(); }

// Computes 32 × 32 elements of c at a time, in four tiles.
[[gnu::target("amx-tile,amx-bf16")]] void tile_product(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda,
                                                       const Bf16Pair* b, int64_t ldb, float* c, int64_t ldc,
                                                       bool add) {
  const int64_t a_bytes = 2 * lda, b_bytes = 4 * ldb, c_bytes = 4 * ldc;
  for (int64_t i = 0; i < m; i += 32)
    for (int64_t j = 0; j < n; j += 32) {
      float* const to = c + i * ldc + j;
      if (add) {
        _tile_loadd(0, to, c_bytes);
        _tile_loadd(1, to + 16, c_bytes);
        _tile_loadd(2, to + 16 * ldc, c_bytes);
        _tile_loadd(3, to + 16 * ldc + 16, c_bytes);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t p = 0; p < k; p += 32) {
        const Bf16Pair* const pairs = b + p / 2 * ldb + j;
        _tile_loadd(4, a + i * lda + p, a_bytes);
        _tile_loadd(6, pairs, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pairs + 16, b_bytes);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + (i + 16) * lda + p, a_bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, to, c_bytes);
      _tile_stored(1, to + 16, c_bytes);
      _tile_stored(2, to + 16 * ldc, c_bytes);
      _tile_stored(3, to + 16 * ldc + 16, c_bytes);
    }
}

// Computes 8 × 32 elements of c at a time, in 16 registers.
[[gnu::target("avx512bf16")]] void vector_product(int64_t m, int64_t n, int64_t k, const Bf16* a, int64_t lda,
                                                  const Bf16Pair* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  constexpr int64_t kRows = 8;
  for (int64_t i = 0; i < m; i += kRows)
    for (int64_t j = 0; j < n; j += 32) {
      float* const to = c + i * ldc + j;
      __m512 sums[kRows][2];
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        sums[r][0] = add ? _mm512_loadu_ps(to + r * ldc) : _mm512_setzero_ps();
        sums[r][1] = add ? _mm512_loadu_ps(to + r * ldc + 16) : _mm512_setzero_ps();
      }
      for (int64_t p = 0; p < k; p += 2) {
        const Bf16Pair* const pairs = b + p / 2 * ldb + j;
        const auto first = reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs)),
                   second = reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs + 16));
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; ++r) {
          int32_t both;
          std::memcpy(&both, a + (i + r) * lda + p, sizeof both);
          const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], factor, first);
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], factor, second);
        }
      }
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        _mm512_storeu_ps(to + r * ldc, sums[r][0]);
        _mm512_storeu_ps(to + r * ldc + 16, sums[r][1]);
      }
    }
}

void nothing() {}

template <bool kCaps>
inline float score(float s, float scale, float softcap) {
  return kCaps ? softcap * chassis::hyperbolic_tangent(s * scale / softcap) : s * scale;
}

template <bool kCaps>
void softmax_of(float* s, int64_t first, int64_t num_keys, const int32_t* lo, const int32_t* hi, float scale,
                float softcap, Bf16Pair* weights, float* lse, float* inverse) {
  constexpr float kNone = -std::numeric_limits<float>::max();
  float largest[kColumns], sum[kColumns];
  for (int64_t i = 0; i < kColumns; ++i) largest[i] = kNone, sum[i] = 0.0f;
  for (int64_t j = 0; j < num_keys; ++j) {
    float* const row = s + j * kColumns;
    const auto key = static_cast<int32_t>(first + j);
    for (int64_t i = 0; i < kColumns; ++i) {
      const bool sees = (key >= lo[i]) & (key < hi[i]);
      const float own = score<kCaps>(row[i], scale, softcap), x = sees ? own : kNone;
      row[i] = x;
      largest[i] = x > largest[i] ? x : largest[i];
    }
  }
  for (int64_t i = 0; i < kColumns; ++i) largest[i] = hi[i] > lo[i] ? largest[i] : 0.0f;
  for (int64_t j = 0; j < num_keys; j += 2) {
    const float *const even = s + j * kColumns, *const odd = even + kColumns;
    Bf16Pair* const to = weights + j / 2 * kColumns;
    for (int64_t i = 0; i < kColumns; ++i) {
      const float a = chassis::exponential(even[i] - largest[i]), b = chassis::exponential(odd[i] - largest[i]);
      sum[i] += a + b;
      to[i] = to_bf16(a) | static_cast<uint32_t>(to_bf16(b)) << 16;
    }
  }
  for (int64_t i = 0; i < kColumns; ++i) {
    const bool sees_any = hi[i] > lo[i];
    lse[i] = sees_any ? largest[i] + std::log(sum[i]) : 0.0f;
    inverse[i] = sees_any ? 1.0f / sum[i] : 0.0f;
  }
}

void softmax(float* s, int64_t first, int64_t num_keys, const int32_t* lo, const int32_t* hi, float scale,
             float softcap, Bf16Pair* weights, float* lse, float* inverse) {
  const auto run = softcap > 0 ? softmax_of<true> : softmax_of<false>;
  run(s, first, num_keys, lo, hi, scale, softcap, weights, lse, inverse);
}

template <bool kCaps>
void gradient_of(const float* s, const float* dp, int64_t first, int64_t num_keys, const int32_t* lo, const int32_t* hi,
                 float scale, float softcap, const float* lse, const float* delta, Bf16* p, Bf16* ds,
                 Bf16Pair* ds_pairs) {
  for (int64_t j = 0; j < num_keys; j += 2) {
    float slopes[2][kColumns];
    for (int64_t odd = 0; odd < 2; ++odd) {
      const int64_t at = (j + odd) * kColumns;
      const auto key = static_cast<int32_t>(first + j + odd);
      for (int64_t i = 0; i < kColumns; ++i) {
        const bool sees = (key >= lo[i]) & (key < hi[i]);
        const float x = score<kCaps>(s[at + i], scale, softcap), t = x / softcap;
        const float value = sees ? chassis::exponential(x - lse[i]) : 0.0f;
        slopes[odd][i] = value * (dp[at + i] - delta[i]) * (kCaps ? scale * (1.0f - t * t) : scale);
        p[at + i] = to_bf16(value);
      }
    }
    for (int64_t i = 0; i < kColumns; ++i) {
      const uint32_t even = to_bf16(slopes[0][i]), odd = to_bf16(slopes[1][i]);
      ds[j * kColumns + i] = static_cast<Bf16>(even);
      ds[(j + 1) * kColumns + i] = static_cast<Bf16>(odd);
      ds_pairs[j / 2 * kColumns + i] = even | odd << 16;
    }
  }
}

void gradient(const float* s, const float* dp, int64_t first, int64_t num_keys, const int32_t* lo, const int32_t* hi,
              float scale, float softcap, const float* lse, const float* delta, Bf16* p, Bf16* ds, Bf16Pair* ds_pairs) {
  const auto run = softcap > 0 ? gradient_of<true> : gradient_of<false>;
  run(s, dp, first, num_keys, lo, hi, scale, softcap, lse, delta, p, ds, ds_pairs);
}

void copy(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to, int64_t padded_rows,
          int64_t padded_columns) {
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(from + r * row_stride, columns, to + r * padded_columns);
    std::fill_n(to + r * padded_columns + columns, padded_columns - columns, Bf16{0});
  }
  std::fill(to + rows * padded_columns, to + padded_rows * padded_columns, Bf16{0});
}

// Works in blocks of 32 columns, so that the lines read stay in the cache.
void transpose(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to, int64_t padded_rows,
               int64_t padded_columns) {
  for (int64_t block = 0; block < padded_rows; block += kTile)
    for (int64_t c = 0; c < padded_columns; ++c)
      for (int64_t r = block; r < block + kTile; ++r)
        to[c * padded_rows + r] = r < rows && c < columns ? from[r * row_stride + c] : Bf16{0};
}

void pair_rows(const Bf16* from, int64_t rows, int64_t columns, Bf16Pair* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    const Bf16 *const even = from + r * columns, *const odd = even + columns;
    for (int64_t c = 0; c < columns; ++c)
      to[r / 2 * columns + c] = static_cast<Bf16Pair>(even[c]) | static_cast<Bf16Pair>(odd[c]) << 16;
  }
}

void pair_columns(const Bf16* from, int64_t rows, int64_t columns, Bf16Pair* to) {
  for (int64_t c = 0; c < columns; c += 2)
    for (int64_t r = 0; r < rows; ++r)
      to[c / 2 * rows + r] =
          static_cast<Bf16Pair>(from[r * columns + c]) | static_cast<Bf16Pair>(from[r * columns + c + 1]) << 16;
}

void store_transposed(const float* from, int64_t ld, int64_t rows, int64_t columns, const float* factor, Bf16* to,
                      int64_t row_stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[i * row_stride + j] = to_bf16(from[j * ld + i] * (factor ? factor[i] : 1.0f));
}

void store(const float* from, int64_t ld, int64_t rows, int64_t columns, Bf16* to, int64_t row_stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * row_stride + j] = to_bf16(from[i * ld + j]);
}

float dot(const Bf16* a, const Bf16* b, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += from_bf16(a[i]) * from_bf16(b[i]);
  return sum;
}

#endif

}  // namespace

const Bf16Blocks* bf16_blocks(Bf16Unit unit, chassis::ThisIsa) {
#ifdef INTERVAL_HAS_BF16_BLOCKS
  static constexpr Bf16Blocks tiles = {begin_tiles, end_tiles, tile_product, softmax,          gradient, copy,
                                       transpose,   pair_rows, pair_columns, store_transposed, store,    dot};
  static constexpr Bf16Blocks vectors = [] {
    Bf16Blocks table = tiles;
    table.begin = table.end = nothing;
    table.product = vector_product;
    return table;
  }();
  return unit == Bf16Unit::kTiles ? &tiles : &vectors;
#else
  static_cast<void>(unit);
  return nullptr;
#endif
}

}  // namespace interval
