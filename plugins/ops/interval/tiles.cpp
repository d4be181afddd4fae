// The tiles in vector extensions of gcc and clang; compiled once for each instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "chassis/simd.hpp"
#include "tiles.hpp"

namespace interval {
namespace {

using chassis::ThisIsa;

typedef float Vector __attribute__((vector_size(ThisIsa::kVectorBytes)));
constexpr int64_t kWidth = ThisIsa::kVectorBytes / 4;
// Registers hold a tile of kRows × kVectors sums, a row of b and a factor.
constexpr int kVectors = ThisIsa::kNumRegisters / 8;
constexpr int kRows = 6;

inline Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, Vector v) { std::memcpy(p, &v, sizeof v); }

// M rows and N vectors of columns, with all sums in registers.
template <int M, int N>
void register_tile(int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb, float* c,
                   int64_t ldc, bool add) {
  Vector sum[M][N] = {};
  for (int64_t p = 0; p < k; ++p) {
    Vector row[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) row[j] = load(b + p * ldb + j * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const float factor = a[i * a_row + p * a_col];
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] += factor * row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) {
      float* to = c + i * ldc + j * kWidth;
      store(to, add ? load(to) + sum[i][j] : sum[i][j]);
    }
}

template <int N>
void row_tiles(int64_t m, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
               float* c, int64_t ldc, bool add) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    register_tile<kRows, N>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, add);
  for (; i + 2 <= m; i += 2) register_tile<2, N>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, add);
  for (; i < m; ++i) register_tile<1, N>(k, a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, add);
}

void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
             float* c, int64_t ldc, bool add) {
  int64_t j = 0;
  for (; j + kVectors * kWidth <= n; j += kVectors * kWidth)
    row_tiles<kVectors>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, add);
  for (; j + kWidth <= n; j += kWidth) row_tiles<1>(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, add);
  for (int64_t i = 0; i < m && j < n; ++i)
    for (int64_t column = j; column < n; ++column) {
      float sum = add ? c[i * ldc + column] : 0.0f;
      for (int64_t p = 0; p < k; ++p) sum += a[i * a_row + p * a_col] * b[p * ldb + column];
      c[i * ldc + column] = sum;
    }
}

// Zeroes x outside [lo, hi); returns false if that is empty. The interval of padding may lie before the block's first
// key.
bool zero_outside(float* x, int64_t n, int64_t lo, int64_t hi) {
  const bool sees_any = hi > lo;
  std::fill(x, x + (sees_any ? lo : n), 0.0f);
  if (sees_any) std::fill(x + hi, x + n, 0.0f);
  return sees_any;
}

float softmax(float* x, int64_t n, int64_t lo, int64_t hi, float scale) {
  if (!zero_outside(x, n, lo, hi)) return 0.0f;
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t i = lo; i < hi; ++i) largest = std::max(largest, x[i]);
  float sum = 0.0f;
  for (int64_t i = lo; i < hi; ++i) {
    x[i] = chassis::exponential((x[i] - largest) * scale);
    sum += x[i];
  }
  const float inverse = 1.0f / sum;
  for (int64_t i = lo; i < hi; ++i) x[i] *= inverse;
  return largest * scale + std::log(sum);
}

void probabilities(float* x, int64_t n, int64_t lo, int64_t hi, float scale, float lse) {
  if (!zero_outside(x, n, lo, hi)) return;
  for (int64_t i = lo; i < hi; ++i) x[i] = chassis::exponential(x[i] * scale - lse);
}

void score_gradient(float* p, const float* dp, int64_t n, float delta, float scale) {
  for (int64_t i = 0; i < n; ++i) p[i] = p[i] * (dp[i] - delta) * scale;
}

void softcap(float* x, float* slope, int64_t lo, int64_t hi, float scale, float cap) {
  for (int64_t i = lo; i < hi; ++i) {
    const float t = chassis::hyperbolic_tangent(x[i] * scale / cap);
    x[i] = cap * t;
    if (slope) slope[i] = 1.0f - t * t;
  }
}

void multiply(float* p, const float* slope, int64_t lo, int64_t hi) {
  for (int64_t i = lo; i < hi; ++i) p[i] *= slope[i];
}

inline float wide(float x) { return x; }
inline float wide(Bf16 x) { return from_bf16(x); }
inline void assign(float x, float& to) { to = x; }
inline void assign(float x, Bf16& to) { to = to_bf16(x); }

template <typename T>
float dot(const float* a, const T* b, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * wide(b[i]);
  return sum;
}

template <typename T>
void add(float factor, const T* from, float* sum, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * wide(from[i]);
}

template <typename T>
void widen(const T* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = wide(from[i]);
}

template <typename T>
void narrow(const float* from, T* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) assign(from[i], to[i]);
}

}  // namespace

const Tiles& tiles(ThisIsa) {
  static constexpr Tiles table = {product,
                                  softmax,
                                  probabilities,
                                  score_gradient,
                                  softcap,
                                  multiply,
                                  {dot<float>, add<float>, widen<float>, narrow<float>},
                                  {dot<Bf16>, add<Bf16>, widen<Bf16>, narrow<Bf16>}};
  return table;
}

}  // namespace interval
