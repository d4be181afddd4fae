// The pieces, by intrinsics. The right factor has pairs of elements that are neighbours in the dim that is summed.
#include "tiles.hpp"

#include <algorithm>

#include "chassis/amx.hpp"
#include "chassis/bf16.hpp"
#if defined(__AVX512BW__) && defined(__x86_64__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#define BNB4_HAS_TILES 1
#endif

namespace bnb4 {
namespace {

#ifdef BNB4_HAS_TILES

[[gnu::target("amx-tile")]] void begin() {
  static constexpr chassis::AmxTileConfig config;
  _tile_loadconfig(&config);
}
[[gnu::target("amx-tile")]] void end() { _tile_release(); }

[[gnu::target("amx-tile,amx-bf16")]] void multiply(const Bf16* left, const Bf16* right, int64_t depth, float* sums,
                                                   int64_t ld, bool add) {
  const int64_t row_bytes = ld * 4;
  if (add) {
    _tile_loadd(0, sums, row_bytes);
    _tile_loadd(1, sums + 16, row_bytes);
    _tile_loadd(2, sums + 16 * ld, row_bytes);
    _tile_loadd(3, sums + 16 * ld + 16, row_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t p = 0; p < depth; p += kSquare, left += kPacked, right += kPacked) {
    _tile_loadd(4, left, 64);
    _tile_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + kPacked / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kPacked / 2, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, row_bytes);
  _tile_stored(1, sums + 16, row_bytes);
  _tile_stored(2, sums + 16 * ld, row_bytes);
  _tile_stored(3, sums + 16 * ld + 16, row_bytes);
}

void pack_left(const Bf16* from, int64_t row_stride, int64_t rows, int64_t columns, Bf16* to) {
  const int64_t whole = columns / kSquare * kSquare, padded = (columns + kSquare - 1) / kSquare * kSquare;
  const __mmask32 rest = static_cast<__mmask32>((uint64_t{1} << (columns - whole)) - 1);
  for (int64_t r = 0; r < kSquare; ++r, to += kSquare) {
    if (r >= rows) {
      for (int64_t p = 0; p < padded; p += kSquare) _mm512_storeu_si512(to + p * kSquare, _mm512_setzero_si512());
      continue;
    }
    const Bf16* const row = from + r * row_stride;
    for (int64_t p = 0; p < whole; p += kSquare) _mm512_storeu_si512(to + p * kSquare, _mm512_loadu_si512(row + p));
    if (whole < padded) _mm512_storeu_si512(to + whole * kSquare, _mm512_maskz_loadu_epi16(rest, row + whole));
  }
}

// Transposes 16 rows of 16 pairs.
inline void transpose(const Bf16* from, int64_t row_stride, Bf16* to) {
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * row_stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // r[i + j]: column j of each quarter, of four rows
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88), b = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88),
                  d = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xdd);
    _mm512_storeu_si512(to + j * kSquare, _mm512_shuffle_i32x4(a, c, 0x88));
    _mm512_storeu_si512(to + (j + 4) * kSquare, _mm512_shuffle_i32x4(b, d, 0x88));
    _mm512_storeu_si512(to + (j + 8) * kSquare, _mm512_shuffle_i32x4(a, c, 0xdd));
    _mm512_storeu_si512(to + (j + 12) * kSquare, _mm512_shuffle_i32x4(b, d, 0xdd));
  }
}

void pack_columns(const Bf16* from, int64_t row_stride, int64_t depth, int64_t half, Bf16* to) {
  for (int64_t p = 0; p < depth; p += kSquare) transpose(from + p, row_stride, to + p * kSquare + half * (kPacked / 2));
}

void pack_rows(const Bf16* from, int64_t row_stride, int64_t columns, int64_t step, Bf16* to) {
  alignas(64) uint16_t order[2][32];
  for (uint16_t i = 0; i < 32; ++i) {
    order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    order[1][i] = static_cast<uint16_t>(16 + i / 2 + i % 2 * 32);
  }
  const __m512i low = _mm512_load_si512(order[0]), high = _mm512_load_si512(order[1]);
  for (int64_t c = 0; c < columns; c += kSquare, to += step)
    for (int64_t r = 0; r < kSquare; r += 2) {
      const __m512i even = _mm512_loadu_si512(from + r * row_stride + c),
                    odd = _mm512_loadu_si512(from + (r + 1) * row_stride + c);
      _mm512_storeu_si512(to + r * 16, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + r * 16 + kPacked / 2, _mm512_permutex2var_epi16(even, high, odd));
    }
}

template <bool kBias, bool kAdd>
void store_rows(const float* sums, int64_t ld, int64_t rows, int64_t columns, const Bf16* __restrict bias,
                Bf16* __restrict to, int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      float sum = sums[r * ld + c];
      if constexpr (kBias) sum += chassis::from_bf16(bias[c]);
      if constexpr (kAdd) sum += chassis::from_bf16(to[r * row_stride + c]);
      to[r * row_stride + c] = chassis::to_bf16(sum);
    }
}

void store(const float* sums, int64_t ld, int64_t rows, int64_t columns, const Bf16* bias, bool add, Bf16* to,
           int64_t row_stride) {
  const auto run = bias != nullptr ? (add ? store_rows<true, true> : store_rows<true, false>)
                                   : (add ? store_rows<false, true> : store_rows<false, false>);
  run(sums, ld, rows, columns, bias, to, row_stride);
}

#endif

}  // namespace

const Tiles* tiles(chassis::ThisIsa) {
#ifdef BNB4_HAS_TILES
  static constexpr Tiles table = {begin, end, pack_left, pack_columns, pack_rows, multiply, store};
  return &table;
#else
  return nullptr;
#endif
}

}  // namespace bnb4
