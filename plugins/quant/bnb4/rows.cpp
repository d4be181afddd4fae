// A byte of codes has an element at an even place and one at an odd place; the two go to different registers.
#include "rows.hpp"

#include <algorithm>
#include <cstring>

#include "chassis/bf16.hpp"
#if defined(__AVX2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace bnb4 {
namespace {

inline float widened(float x) { return x; }
inline float widened(uint16_t x) { return chassis::from_bf16(x); }

template <typename T>
void split(const T* x, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kRowGroup)
    for (int64_t j = 0; j < kRowGroup / 2; ++j) {
      to[i + j] = widened(x[i + 2 * j]);
      to[i + kRowGroup / 2 + j] = widened(x[i + 2 * j + 1]);
    }
}

#if defined(__AVX512BW__) && defined(__AVX512VL__)

using Vector = __m512;

struct Values {
  __m512 table;
  explicit Values(const float* p) : table(_mm512_loadu_ps(p)) {}
  // Looks up the values of 32 elements, those at even places and those at odd places; a lane looks up its lowest four
  // bits.
  void operator()(const uint8_t* codes, int, __m512& even, __m512& odd) const {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    even = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
    odd = _mm512_permutexvar_ps(bytes, table);
  }
};
inline Vector load(const float* p) { return _mm512_loadu_ps(p); }
inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector fill(float x) { return _mm512_set1_ps(x); }
inline float sum(Vector x) { return _mm512_reduce_add_ps(x); }

#elif defined(__AVX2__)

using Vector = __m256;

struct Values {
  __m256 low, high;
  explicit Values(const float* p) : low(_mm256_loadu_ps(p)), high(_mm256_loadu_ps(p + 8)) {}
  __m256 look_up(__m256i at) const {
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(at, 28));  // bit 3 becomes the sign
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, at), _mm256_permutevar8x32_ps(high, at), upper);
  }
  void operator()(const uint8_t* codes, int i, __m256& even, __m256& odd) const {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i)));
    even = look_up(_mm256_srli_epi32(bytes, 4));
    odd = look_up(bytes);
  }
};
inline Vector load(const float* p) { return _mm256_loadu_ps(p); }
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector fill(float x) { return _mm256_set1_ps(x); }
inline float sum(Vector x) {
  alignas(32) float all[8];
  _mm256_store_ps(all, x);
  return ((all[0] + all[4]) + (all[1] + all[5])) + ((all[2] + all[6]) + (all[3] + all[7]));
}

#else

typedef float Vector __attribute__((vector_size(16)));

struct Values {
  const float* table;
  explicit Values(const float* p) : table(p) {}
  void operator()(const uint8_t* codes, int i, Vector& even, Vector& odd) const {
    for (int j = 0; j < 4; ++j) {
      even[j] = table[codes[4 * i + j] >> 4];
      odd[j] = table[codes[4 * i + j] & 15];
    }
  }
};
inline Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Vector zero() { return Vector{}; }
inline Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
inline Vector fill(float x) { return Vector{x, x, x, x}; }
inline float sum(Vector x) { return (x[0] + x[2]) + (x[1] + x[3]); }

#endif

constexpr int kWidth = sizeof(Vector) / 4, kParts = kRowGroup / 2 / kWidth;

// The sums of a block are scaled once.
template <int num_rows>
void dots_of(const float* x, int64_t x_stride, const float* table, const uint8_t* codes, const float* absmax,
             int64_t within, int64_t block, int64_t n, float* sums) {
  const Values values(table);
  Vector total[num_rows];
#pragma GCC unroll 4
  for (int r = 0; r < num_rows; ++r) total[r] = zero();
  for (int64_t i = 0; i < n; ++absmax, within = 0) {
    const int64_t end = std::min(n, i + block - within);
    Vector part[num_rows];
#pragma GCC unroll 4
    for (int r = 0; r < num_rows; ++r) part[r] = zero();
    for (; i < end; i += kRowGroup)
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        Vector even, odd;
        values(codes + i / 2, p, even, odd);
        const float* const from = x + i + p * kWidth;
#pragma GCC unroll 4
        for (int r = 0; r < num_rows; ++r) {
          part[r] = multiply_add(even, load(from + r * x_stride), part[r]);
          part[r] = multiply_add(odd, load(from + r * x_stride + kRowGroup / 2), part[r]);
        }
      }
    const Vector scale = fill(*absmax);
#pragma GCC unroll 4
    for (int r = 0; r < num_rows; ++r) total[r] = multiply_add(part[r], scale, total[r]);
  }
#pragma GCC unroll 4
  for (int r = 0; r < num_rows; ++r) sums[r] += sum(total[r]);
}

void add_dots(int64_t num_rows, const float* x, int64_t x_stride, const float* table, const uint8_t* codes,
              const float* absmax, int64_t within, int64_t block, int64_t n, float* sums) {
  while (num_rows > 0) {
    const int64_t some = std::min<int64_t>(num_rows, 4);
    const auto run = some == 4 ? dots_of<4> : some == 3 ? dots_of<3> : some == 2 ? dots_of<2> : dots_of<1>;
    run(x, x_stride, table, codes, absmax, within, block, n, sums);
    num_rows -= some, x += some * x_stride, sums += some;
  }
}

}  // namespace

const RowLoops& row_loops(chassis::ThisIsa) {
  static constexpr RowLoops table = {split<float>, split<uint16_t>, add_dots};
  return table;
}

}  // namespace bnb4
