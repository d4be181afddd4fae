// The loops of few_rows.cpp, which a source for each instruction set includes. Everything is in an anonymous namespace,
// so that the linker keeps the versions apart.
#pragma once

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "chassis/bf16.hpp"

namespace chassis {

// c[m, n] = alpha · a[m, k] · b[n, k]ᵀ + beta · c. Rows begin ld… values apart; c is not read if beta is 0. T is float,
// or uint16_t for bf16.
template <typename T>
struct FewRowsProblem {
  int64_t m, n, k;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  void* c;  // of float, or of bf16 if c_is_bf16
  int64_t ldc;
  bool c_is_bf16;
  float alpha, beta;
};

// Columns of c that are computed at once. Threads divide n into multiples of it.
inline constexpr int64_t kFewRowsColumns = 4;

// The functions of one instruction set; each computes the columns [begin, end) of c.
struct FewRowsLoops {
  void (*fp32)(const FewRowsProblem<float>& p, int64_t begin, int64_t end);
  void (*bf16)(const FewRowsProblem<uint16_t>& p, int64_t begin, int64_t end);
};
FewRowsLoops few_rows_avx2();
FewRowsLoops few_rows_avx512();
FewRowsLoops few_rows_avx512_bf16();

namespace {

template <int kWidth>
using Floats [[gnu::vector_size(4 * kWidth)]] = float;
template <int kWidth>
using Words [[gnu::vector_size(4 * kWidth)]] = uint32_t;
template <int kWidth>
using Halves [[gnu::vector_size(2 * kWidth)]] = uint16_t;

template <typename V>
[[gnu::always_inline]] inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// How values are read and multiplied: `kValues` at once, into sums of kWidth.
template <int kVectorWidth>
struct Fp32 {
  static constexpr int kWidth = kVectorWidth, kValues = kWidth;
  using Value = float;
  using Read = Floats<kWidth>;
  [[gnu::always_inline]] static Read read(const float* p) { return load<Read>(p); }
  [[gnu::always_inline]] static void add(Floats<kWidth>& sum, Read x, Read y) { sum += x * y; }
};

template <int kVectorWidth>
struct WidenedBf16 {
  static constexpr int kWidth = kVectorWidth, kValues = kWidth;
  using Value = uint16_t;
  using Read = Floats<kWidth>;
  [[gnu::always_inline]] static Read read(const uint16_t* p) {
    const auto words = __builtin_convertvector(load<Halves<kWidth>>(p), Words<kWidth>) << 16;
    return load<Read>(&words);
  }
  [[gnu::always_inline]] static void add(Floats<kWidth>& sum, Read x, Read y) { sum += x * y; }
};

#ifdef __AVX512BF16__
struct PairedBf16 {
  static constexpr int kWidth = 16, kValues = 32;
  using Value = uint16_t;
  using Read = Words<kWidth>;
  [[gnu::always_inline]] static Read read(const uint16_t* p) { return load<Read>(p); }
  [[gnu::always_inline]] static void add(Floats<kWidth>& sum, Read x, Read y) {
    sum = (Floats<kWidth>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
  }
};
#endif

// The last values of a row, followed by zeros.
template <class Kind>
[[gnu::always_inline]] inline typename Kind::Read read_rest(const typename Kind::Value* p, int64_t count) {
  typename Kind::Value values[Kind::kValues] = {};
  std::memcpy(values, p, static_cast<size_t>(count) * sizeof *p);
  return Kind::read(values);
}

// The sums of the quarters of a vector, added.
template <int kWidth>
[[gnu::always_inline]] inline Floats<4> folded(Floats<kWidth> v) {
  if constexpr (kWidth == 4) {
    return v;
  } else {
    Floats<kWidth / 2> half[2];
    std::memcpy(half, &v, sizeof v);
    return folded<kWidth / 2>(half[0] + half[1]);
  }
}

// Element j is the sum of the elements of v[j].
[[gnu::always_inline]] inline Floats<4> sums_of(const Floats<4> (&v)[4]) {
  const auto a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), b = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
  const auto c = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5), d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  const Floats<4> low = a + b, high = c + d;  // two sums of each of two columns
  return __builtin_shufflevector(low, high, 0, 1, 4, 5) + __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

template <typename T>
inline void write(const FewRowsProblem<T>& p, int64_t i, int64_t j, float sum) {
  const float scaled = p.alpha * sum;
  if (p.c_is_bf16) {
    uint16_t& c = static_cast<uint16_t*>(p.c)[i * p.ldc + j];
    c = to_bf16(p.beta == 0.0f ? scaled : scaled + p.beta * from_bf16(c));
  } else {
    float& c = static_cast<float*>(p.c)[i * p.ldc + j];
    c = p.beta == 0.0f ? scaled : scaled + p.beta * c;
  }
}

// M rows from row i on, and the four columns from j on. Where fewer columns are left, the last one is read again.
template <class Kind, int M>
void tile(const FewRowsProblem<typename Kind::Value>& p, int64_t i, int64_t j) {
  constexpr int N = kFewRowsColumns;
  const typename Kind::Value* column[N];
  for (int y = 0; y < N; ++y) column[y] = p.b + std::min(j + y, p.n - 1) * p.ldb;
  Floats<Kind::kWidth> sum[M][N] = {};
  const auto add = [&](auto&& read, int64_t l) __attribute__((always_inline)) {
    typename Kind::Read b[N];
#pragma GCC unroll 4
    for (int y = 0; y < N; ++y) {
      b[y] = read(column[y] + l);
      // The columns of the next tile, into the second cache: a processor does not follow four streams across tiles by
      // itself. Measured on Zen 4 for k = 768: 1.2 times as fast for one row, 1.8 times for eight.
      __builtin_prefetch(column[y] + N * p.ldb + l, 0, 2);
    }
#pragma GCC unroll 4
    for (int x = 0; x < M; ++x) {
      const typename Kind::Read a = read(p.a + (i + x) * p.lda + l);
#pragma GCC unroll 4
      for (int y = 0; y < N; ++y) Kind::add(sum[x][y], a, b[y]);
    }
  };
  const int64_t whole = p.k - p.k % Kind::kValues;
  for (int64_t l = 0; l < whole; l += Kind::kValues) add(Kind::read, l);
  if (whole < p.k) add([&](const auto* at) { return read_rest<Kind>(at, p.k - whole); }, whole);
#pragma GCC unroll 4
  for (int x = 0; x < M; ++x) {
    Floats<4> parts[N];
#pragma GCC unroll 4
    for (int y = 0; y < N; ++y) parts[y] = folded<Kind::kWidth>(sum[x][y]);
    const Floats<4> sums = sums_of(parts);
    for (int64_t y = 0; y < std::min<int64_t>(N, p.n - j); ++y) write(p, i + x, j + y, sums[y]);
  }
}

template <class Kind, int M>
void short_tile(int64_t rows, const FewRowsProblem<typename Kind::Value>& p, int64_t i, int64_t j) {
  if constexpr (M > 0) {
    if (rows == M) return tile<Kind, M>(p, i, j);
    short_tile<Kind, M - 1>(rows, p, i, j);
  }
}

// The columns stay in the nearest cache while they are multiplied by kRows rows after another.
template <class Kind, int kRows>
void columns(const FewRowsProblem<typename Kind::Value>& p, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += kFewRowsColumns)
    for (int64_t i = 0; i < p.m; i += kRows) short_tile<Kind, kRows>(std::min<int64_t>(kRows, p.m - i), p, i, j);
}

}  // namespace
}  // namespace chassis
