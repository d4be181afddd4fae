// Blocks are quantized and dequantized by vectors where the instruction set has in-register tables, and one element at
// a time elsewhere and at the end of a block. Must be compiled so that the compiler may neither contract nor reorder
// operations.
#include "loops.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "chassis/bf16.hpp"
#if defined(__AVX2__)
// gcc 12 warns about the undefined operands in its own intrinsics.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

namespace bnb4 {
namespace {

constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;

// ---- one element

struct F32 {
  using Stored = float;
};
struct Bf16 {
  using Stored = uint16_t;
};
struct F16 {
  using Stored = uint16_t;
};

inline float load(F32, const float* p) { return *p; }
inline float load(Bf16, const uint16_t* p) { return chassis::from_bf16(*p); }
inline float load(F16, const uint16_t* p) {
  const uint32_t sign = static_cast<uint32_t>(*p & 0x8000u) << 16, rest = *p & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | kInfinity | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(rest) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

inline void store(F32, float value, float* out) { *out = value; }
inline void store(Bf16, float value, uint16_t* out) { *out = chassis::to_bf16(value); }
inline void store(F16, float value, uint16_t* out) {
  const uint32_t word = std::bit_cast<uint32_t>(value), rest = word & kMagnitude;
  const auto sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  uint32_t half;
  if (rest >= 0x477ff000u) {  // rounds to 2^16 or more
    half = 0x7c00u;
  } else if (rest >= 0x38800000u) {
    half = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  } else {  // a multiple of 2^-24: the sum's last bits are the integer
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + 0.5f) - 0x3f000000u;
  }
  *out = static_cast<uint16_t>(sign | half);
}

inline uint32_t code_of(Code code, float scaled) {
  if (code == Code::kNf4) {
    uint32_t at = scaled > kNf4Thresholds[7] ? 8 : 0;
    at += scaled > kNf4Thresholds[at + 3] ? 4 : 0;
    at += scaled > kNf4Thresholds[at + 1] ? 2 : 0;
    return at + (scaled > kNf4Thresholds[at] ? 1 : 0);
  }
  const float magnitude = std::abs(scaled);
  uint32_t at = magnitude > kFp4Thresholds[3] ? 4 : 0;
  at += magnitude > kFp4Thresholds[at + 1] ? 2 : 0;
  at += magnitude > kFp4Thresholds[at] ? 1 : 0;
  return kFp4Order[at] | (scaled < 0.0f ? 8u : 0u);
}

template <typename Type>
uint32_t largest_magnitude(const typename Type::Stored* values, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<uint32_t>(load(Type{}, values + i)) & kMagnitude);
  return most;
}

template <typename Type>
void quantize_elements(Code code, const typename Type::Stored* values, int64_t n, float factor, uint8_t* codes) {
  for (int64_t i = 0; i < n; i += 2) {
    const uint32_t high = code_of(code, load(Type{}, values + i) * factor);
    const uint32_t low = code_of(code, i + 1 < n ? load(Type{}, values + i + 1) * factor : 0.0f);
    codes[i / 2] = static_cast<uint8_t>(high << 4 | low);
  }
}

template <typename Type>
void dequantize_elements(const typename Type::Stored* table, const uint8_t* codes, int64_t n,
                         typename Type::Stored* values) {
  for (int64_t i = 0; i < n; ++i) values[i] = table[i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15];
}

// ---- vectors: each function handles a multiple of 32 elements of one block and returns their number

#if defined(__AVX512BW__) && defined(__AVX512VL__)

inline __m512 load_vector(F32, const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load_vector(Bf16, const uint16_t* p) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
inline __m512 load_vector(F16, const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

template <typename Type>
int64_t vector_magnitude(const typename Type::Stored* values, int64_t n, uint32_t& most) {
  const int64_t whole = n / 32 * 32;
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(kMagnitude));
  __m512i a = _mm512_setzero_si512(), b = a;
  for (int64_t i = 0; i < whole; i += 32) {
    a = _mm512_max_epu32(a, _mm512_and_si512(mask, _mm512_castps_si512(load_vector(Type{}, values + i))));
    b = _mm512_max_epu32(b, _mm512_and_si512(mask, _mm512_castps_si512(load_vector(Type{}, values + i + 16))));
  }
  if (whole > 0) most = std::max(most, static_cast<uint32_t>(_mm512_reduce_max_epu32(_mm512_max_epu32(a, b))));
  return whole;
}

// Thresholds at index + 3, + 1 and + 0, so that a probe needs no addition.
struct Nf4Probe {
  __m512 quarter, eighth, last;
  Nf4Probe() {
    alignas(64) float t[3][16] = {};
    for (int i = 0; i < 15; ++i) {
      if (i >= 3) t[0][i - 3] = kNf4Thresholds[static_cast<size_t>(i)];
      if (i >= 1) t[1][i - 1] = kNf4Thresholds[static_cast<size_t>(i)];
      t[2][i] = kNf4Thresholds[static_cast<size_t>(i)];
    }
    quarter = _mm512_load_ps(t[0]), eighth = _mm512_load_ps(t[1]), last = _mm512_load_ps(t[2]);
  }
  __m512i operator()(__m512 y) const {
    const auto more = [&](__m512i at, __m512 table, int step) {
      const __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(at, table), _CMP_GT_OQ);
      return _mm512_mask_or_epi32(at, above, at, _mm512_set1_epi32(step));
    };
    const __mmask16 half = _mm512_cmp_ps_mask(y, _mm512_set1_ps(kNf4Thresholds[7]), _CMP_GT_OQ);
    return more(more(more(_mm512_maskz_set1_epi32(half, 8), quarter, 4), eighth, 2), last, 1);
  }
};

struct Fp4Probe {
  __m512 eighth, last;
  __m512i order;
  Fp4Probe() {
    alignas(64) float t[2][16] = {};
    alignas(64) uint32_t o[16] = {};
    for (int i = 0; i < 7; ++i) {
      if (i >= 1) t[0][i - 1] = kFp4Thresholds[static_cast<size_t>(i)];
      t[1][i] = kFp4Thresholds[static_cast<size_t>(i)];
    }
    for (size_t i = 0; i < 8; ++i) o[i] = kFp4Order[i];
    eighth = _mm512_load_ps(t[0]), last = _mm512_load_ps(t[1]);
    order = _mm512_load_si512(o);
  }
  __m512i operator()(__m512 y) const {
    const __m512 magnitude = _mm512_abs_ps(y);
    const auto more = [&](__m512i at, __m512 table, int step) {
      const __mmask16 above = _mm512_cmp_ps_mask(magnitude, _mm512_permutexvar_ps(at, table), _CMP_GT_OQ);
      return _mm512_mask_or_epi32(at, above, at, _mm512_set1_epi32(step));
    };
    const __mmask16 half = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kFp4Thresholds[3]), _CMP_GT_OQ);
    const __m512i at = more(more(_mm512_maskz_set1_epi32(half, 4), eighth, 2), last, 1);
    const __mmask16 negative = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512i code = _mm512_permutexvar_epi32(at, order);
    return _mm512_mask_or_epi32(code, negative, code, _mm512_set1_epi32(8));
  }
};

inline void store_codes(__m512i codes, uint8_t* out) {
  const __m512i pairs = _mm512_or_si512(_mm512_slli_epi64(codes, 4), _mm512_srli_epi64(codes, 32));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi8(pairs));
}

template <typename Type, typename Probe>
int64_t vector_quantize(const Probe& probe, const typename Type::Stored* values, int64_t n, float factor,
                        uint8_t* codes) {
  const int64_t whole = n / 32 * 32;
  const __m512 scale = _mm512_set1_ps(factor);
  for (int64_t i = 0; i < whole; i += 32) {
    store_codes(probe(_mm512_mul_ps(load_vector(Type{}, values + i), scale)), codes + i / 2);
    store_codes(probe(_mm512_mul_ps(load_vector(Type{}, values + i + 16), scale)), codes + i / 2 + 8);
  }
  return whole;
}

// Each byte of codes becomes a word of 32 bits; permutations read only its lowest four.
inline int64_t vector_dequantize(F32, const float* table, float absmax, const uint8_t* codes, int64_t n,
                                 float* values) {
  const int64_t whole = n / 32 * 32;
  const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(absmax));
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (int64_t i = 0; i < whole; i += 32) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    const __m512 even = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), scaled),
                 odd = _mm512_permutexvar_ps(bytes, scaled);
    _mm512_storeu_ps(values + i, _mm512_permutex2var_ps(even, low, odd));
    _mm512_storeu_ps(values + i + 16, _mm512_permutex2var_ps(even, high, odd));
  }
  return whole;
}

// The 16 values of a block in both halves.
inline __m512i scaled_table(Bf16, __m512 product) {
  const __m512i word = _mm512_castps_si512(product),
                odd = _mm512_and_si512(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1)),
                sum = _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)));
}
inline __m512i scaled_table(F16, __m512 product) {
  return _mm512_broadcast_i64x4(_mm512_cvtps_ph(product, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

template <typename Type>
int64_t vector_dequantize(Type, const float* table, float absmax, const uint8_t* codes, int64_t n, uint16_t* values) {
  const int64_t whole = n / 32 * 32;
  const __m512i scaled = scaled_table(Type{}, _mm512_mul_ps(_mm512_loadu_ps(table), _mm512_set1_ps(absmax)));
  for (int64_t i = 0; i < whole; i += 32) {
    // Pairs of indexes of 16 bits. Bit 4 chooses between the equal halves of the table.
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i / 2)));
    const __m512i at = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
    _mm512_storeu_si512(values + i, _mm512_permutexvar_epi16(at, scaled));
  }
  return whole;
}

#elif defined(__AVX2__)

inline __m256 load_vector(F32, const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_vector(Bf16, const uint16_t* p) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
inline __m256 load_vector(F16, const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <typename Type>
int64_t vector_magnitude(const typename Type::Stored* values, int64_t n, uint32_t& most) {
  const int64_t whole = n / 32 * 32;
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  __m256i a = _mm256_setzero_si256(), b = a;
  for (int64_t i = 0; i < whole; i += 16) {
    a = _mm256_max_epu32(a, _mm256_and_si256(mask, _mm256_castps_si256(load_vector(Type{}, values + i))));
    b = _mm256_max_epu32(b, _mm256_and_si256(mask, _mm256_castps_si256(load_vector(Type{}, values + i + 8))));
  }
  alignas(32) uint32_t all[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(all), _mm256_max_epu32(a, b));
  for (const uint32_t one : all) most = std::max(most, one);
  return whole;
}

// The number of thresholds exceeded so far selects the next one.
inline __m256i next_code(__m256i at, __m256 y, __m256 table) {
  const __m256 above = _mm256_cmp_ps(y, _mm256_permutevar8x32_ps(table, at), _CMP_GT_OQ);
  return _mm256_sub_epi32(_mm256_add_epi32(at, at), _mm256_castps_si256(above));
}

template <size_t N>
__m256 every(const std::array<float, N>& thresholds, size_t first, size_t step) {
  alignas(32) float t[8] = {};
  for (size_t i = 0; i < 8 && first + i * step < N; ++i) t[i] = thresholds[first + i * step];
  return _mm256_load_ps(t);
}

struct Nf4Probe {
  __m256 t1 = every(kNf4Thresholds, 7, 16), t2 = every(kNf4Thresholds, 3, 8), t3 = every(kNf4Thresholds, 1, 4),
         t4 = every(kNf4Thresholds, 0, 2);
  __m256i operator()(__m256 y) const {
    return next_code(next_code(next_code(next_code(_mm256_setzero_si256(), y, t1), y, t2), y, t3), y, t4);
  }
};

struct Fp4Probe {
  __m256 t1 = every(kFp4Thresholds, 3, 8), t2 = every(kFp4Thresholds, 1, 4), t3 = every(kFp4Thresholds, 0, 2);
  __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFp4Order.data()));
  __m256i operator()(__m256 y) const {
    const __m256 magnitude = _mm256_and_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(kMagnitude))));
    const __m256i at =
        next_code(next_code(next_code(_mm256_setzero_si256(), magnitude, t1), magnitude, t2), magnitude, t3);
    const __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_LT_OQ));
    return _mm256_or_si256(_mm256_permutevar8x32_epi32(order, at), _mm256_and_si256(negative, _mm256_set1_epi32(8)));
  }
};

inline void store_codes(__m256i codes, uint8_t* out) {
  const __m256i pairs = _mm256_or_si256(_mm256_slli_epi64(codes, 4), _mm256_srli_epi64(codes, 32));
  const __m256i first =
      _mm256_shuffle_epi8(pairs, _mm256_setr_epi8(0, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 8,
                                                  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const uint32_t low = static_cast<uint32_t>(_mm256_extract_epi16(first, 0)),
                 high = static_cast<uint32_t>(_mm256_extract_epi16(first, 8));
  const uint32_t bytes = low | high << 16;
  std::memcpy(out, &bytes, 4);
}

template <typename Type, typename Probe>
int64_t vector_quantize(const Probe& probe, const typename Type::Stored* values, int64_t n, float factor,
                        uint8_t* codes) {
  const int64_t whole = n / 32 * 32;
  const __m256 scale = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < whole; i += 8)
    store_codes(probe(_mm256_mul_ps(load_vector(Type{}, values + i), scale)), codes + i / 2);
  return whole;
}

inline __m256i spread(const uint8_t* codes) {
  const __m256i w = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_or_si256(_mm256_srli_epi16(w, 4), _mm256_slli_epi16(_mm256_and_si256(w, _mm256_set1_epi16(15)), 8));
}

inline int64_t vector_dequantize(F32, const float* table, float absmax, const uint8_t* codes, int64_t n,
                                 float* values) {
  const int64_t whole = n / 32 * 32;
  const __m256 scale = _mm256_set1_ps(absmax), first = _mm256_mul_ps(_mm256_loadu_ps(table), scale),
               second = _mm256_mul_ps(_mm256_loadu_ps(table + 8), scale);
  for (int64_t i = 0; i < whole; i += 32) {
    alignas(32) uint8_t at[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(at), spread(codes + i / 2));
    for (int j = 0; j < 32; j += 8) {
      const __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + j)));
      const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));  // bit 3 becomes the sign
      _mm256_storeu_ps(values + i + j, _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, index),
                                                        _mm256_permutevar8x32_ps(second, index), upper));
    }
  }
  return whole;
}

template <typename Type>
int64_t vector_dequantize(Type, const float* table, float absmax, const uint8_t* codes, int64_t n, uint16_t* values) {
  const int64_t whole = n / 32 * 32;
  alignas(16) uint8_t bytes[2][16];
  for (int i = 0; i < 16; ++i) {
    uint16_t scaled;
    store(Type{}, table[i] * absmax, &scaled);
    bytes[0][i] = static_cast<uint8_t>(scaled);
    bytes[1][i] = static_cast<uint8_t>(scaled >> 8);
  }
  const __m256i low = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes[0])));
  const __m256i high = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes[1])));
  for (int64_t i = 0; i < whole; i += 32) {
    const __m256i at = spread(codes + i / 2);
    const __m256i l = _mm256_shuffle_epi8(low, at), h = _mm256_shuffle_epi8(high, at);
    const __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);  // by halves of the register
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i), _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + i + 16), _mm256_permute2x128_si256(a, b, 0x31));
  }
  return whole;
}

#else

struct Nf4Probe {};
struct Fp4Probe {};

template <typename Type>
int64_t vector_magnitude(const typename Type::Stored*, int64_t, uint32_t&) {
  return 0;
}
template <typename Type, typename Probe>
int64_t vector_quantize(const Probe&, const typename Type::Stored*, int64_t, float, uint8_t*) {
  return 0;
}
template <typename Type>
int64_t vector_dequantize(Type, const float*, float, const uint8_t*, int64_t, typename Type::Stored*) {
  return 0;
}

#endif

// ---- blocks

template <typename Type, typename Probe>
int64_t quantize_blocks(const Probe& probe, Code code, const typename Type::Stored* values, int64_t n, int64_t block,
                        uint8_t* codes, float* absmax) {
  int64_t bad = -1;
  for (int64_t begin = 0; begin < n; begin += block, ++absmax) {
    const int64_t length = std::min(block, n - begin);
    const typename Type::Stored* const from = values + begin;
    uint32_t most = 0;
    const int64_t seen = vector_magnitude<Type>(from, length, most);
    most = std::max(most, largest_magnitude<Type>(from + seen, length - seen));
    if (most >= kInfinity && bad < 0) bad = begin / block;
    *absmax = std::bit_cast<float>(most);
    const float factor = 1.0f / std::max(*absmax, kSmallestScale);
    uint8_t* const to = codes + begin / 2;
    const int64_t done = vector_quantize<Type>(probe, from, length, factor, to);
    quantize_elements<Type>(code, from + done, length - done, factor, to + done / 2);
  }
  return bad;
}

template <typename Type>
int64_t quantize(Code code, const typename Type::Stored* values, int64_t n, int64_t block, uint8_t* codes,
                 float* absmax) {
  if (code == Code::kNf4) return quantize_blocks<Type>(Nf4Probe(), code, values, n, block, codes, absmax);
  return quantize_blocks<Type>(Fp4Probe(), code, values, n, block, codes, absmax);
}

// The 16 values of a block are computed once.
template <typename Type>
void dequantize(const float* table, const uint8_t* codes, const float* absmax, int64_t n, int64_t block,
                typename Type::Stored* values) {
  for (int64_t begin = 0; begin < n; begin += block, ++absmax) {
    const int64_t length = std::min(block, n - begin);
    const uint8_t* const from = codes + begin / 2;
    const int64_t done = vector_dequantize(Type{}, table, *absmax, from, length, values + begin);
    if (done == length) continue;
    typename Type::Stored scaled[16];
    for (int i = 0; i < 16; ++i) store(Type{}, table[i] * *absmax, &scaled[i]);
    dequantize_elements<Type>(scaled, from + done / 2, length - done, values + begin + done);
  }
}

// ---- sums

void round_bf16(const float* sums, const uint16_t* added, int64_t n, uint16_t* out) {
  if (added == nullptr)
    for (int64_t i = 0; i < n; ++i) out[i] = chassis::to_bf16(sums[i]);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = chassis::to_bf16(sums[i] + load(Bf16{}, added + i));
}

}  // namespace

const Loops& loops(chassis::ThisIsa) {
  static constexpr Loops table = {quantize<F32>,    quantize<Bf16>,  quantize<F16>, dequantize<F32>,
                                  dequantize<Bf16>, dequantize<F16>, round_bf16};
  return table;
}

}  // namespace bnb4
