// The loops of Goto and van de Geijn (2008): a panel of b stays in the caches while it is multiplied by one block of
// `a` after another; a tile of 12 rows and 32 columns of c stays in registers. A word of a factor is one fp32 value, or
// two bf16 values of consecutive k, whose products one instruction adds to a sum.
#include "host/service/product.hpp"

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "host/service/threads.hpp"

namespace chassis {

#ifdef __AVX512F__

namespace {

constexpr int kWidth = 16, kRows = 12, kVectors = 2;
constexpr int64_t kColumns = kVectors * kWidth;
// kDepth: words summed in registers at once. kHeight: rows of a, which fill most of a level-2 cache of 1 MiB. kPanel:
// columns of b.
constexpr int64_t kDepth = 384, kHeight = 480, kPanel = 1024;
// With fewer columns or rows, the other factor is read in place, since a copy would be read only once or twice.
constexpr int64_t kFewColumns = 64, kFewRows = 48;

typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int16_t Halves __attribute__((vector_size(4 * kWidth)));

template <typename V = Vector>
[[gnu::always_inline]] inline V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
[[gnu::always_inline]] inline void store(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

template <typename T>
constexpr int64_t kValues = static_cast<int64_t>(sizeof(float) / sizeof(T));  // in a word
template <typename T>
constexpr int64_t words_of(int64_t k) {
  return (k + kValues<T> - 1) / kValues<T>;
}

// Memory of one thread, kept for the next product.
class Panels {
 public:
  Panels() : data_(static_cast<float*>(::operator new (kFloats * sizeof(float), std::align_val_t{64}))) {}
  float* a() const { return data_.get(); }
  float* b() const { return data_.get() + kHeight * kDepth; }

 private:
  static constexpr int64_t kFloats = (kHeight + kPanel) * kDepth;
  struct Free {
    void operator()(float* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
};

// A tile of M rows and N vectors of columns. Words of a are a_column apart and its rows a_row; T is the type of values.
template <typename T, int M, int N>
[[gnu::target("avx512bf16")]] void tile(int64_t words, const float* a, int64_t a_row, int64_t a_column, const float* b,
                                        int64_t ldb, float* c, int64_t ldc, float alpha, float beta) {
  Vector sum[M][N] = {};
  for (int64_t p = 0; p < words; ++p) {
    Vector row[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) row[j] = load(b + p * ldb + j * kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < M; ++i) {
      const float* const word = a + i * a_row + p * a_column;
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) {
        if constexpr (std::is_same_v<T, float>)
          sum[i][j] += *word * row[j];
        else
          sum[i][j] = (Vector)_mm512_dpbf16_ps((__m512)sum[i][j], (__m512bh)_mm512_set1_ps(*word), (__m512bh)row[j]);
      }
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      float* const to = c + i * ldc + j * kWidth;
      const Vector scaled = alpha * sum[i][j];
      store(to, beta == 0.0f ? scaled : scaled + beta * load(to));
    }
}

// The arguments that tiles of N vectors of columns share.
struct Strip {
  int64_t words;
  const float* b;
  int64_t ldb, ldc;
  float alpha, beta;
};

template <typename T, int N, int M = kRows>
void short_tile(int64_t m, const Strip& s, const float* a, int64_t a_row, int64_t a_column, float* c) {
  if constexpr (M > 0) {
    if (m == M) return tile<T, M, N>(s.words, a, a_row, a_column, s.b, s.ldb, c, s.ldc, s.alpha, s.beta);
    short_tile<T, N, M - 1>(m, s, a, a_row, a_column, c);
  }
}

// The copied block of a holds its tiles of kRows rows one after another. In a tile, the kRows words of one step are
// adjacent.
template <typename T, int N>
void strip_of_copy(int64_t m, const Strip& s, const float* a, float* c) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    tile<T, kRows, N>(s.words, a + i * s.words, 1, kRows, s.b, s.ldb, c + i * s.ldc, s.ldc, s.alpha, s.beta);
  short_tile<T, N>(m - i, s, a + i * s.words, 1, kRows, c + i * s.ldc);
}

template <typename T, int N>
void strip_in_place(int64_t m, const Strip& s, Factor<float> a, float* c) {
  for (int64_t i = 0; i < m; i += kRows)
    short_tile<T, N>(std::min<int64_t>(kRows, m - i), s, a.data + i * a.row, a.row, a.column, c + i * s.ldc);
}

// Turns `rows` rows of 16 words into the first columns of 16 rows; the other columns are zero.
void transpose(const float* from, int64_t ld, int64_t rows, float* to, int64_t ld_to) {
  Vector r[kWidth] = {}, s[kWidth];
  if (rows == kWidth) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) r[i] = load(from + i * ld);
  } else {
    for (int64_t i = 0; i < rows; ++i) r[i] = load(from + i * ld);
  }
  // Each pass interleaves row i with row i + 8; four of them transpose.
  const auto interleave = [](const Vector* in, Vector* out) {
#pragma GCC unroll 8
    for (int i = 0; i < kWidth / 2; ++i) {
      const Vector &x = in[i], &y = in[i + kWidth / 2];
      out[2 * i] = __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      out[2 * i + 1] = __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
  };
  interleave(r, s), interleave(s, r), interleave(r, s), interleave(s, r);
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) store(to + i * ld_to, r[i]);
}

// The factor as words, if its values of consecutive k are adjacent; data is NULL if they are not, or not aligned.
template <typename T>
Factor<float> as_words(Factor<T> f, int64_t along_k, int64_t other) {
  if constexpr (std::is_same_v<T, float>) return f;
  const bool aligned = reinterpret_cast<uintptr_t>(f.data) % sizeof(float) == 0 && other % kValues<T> == 0;
  if (along_k != 1 || !aligned) return {nullptr, 0, 0};
  const auto stride = [](int64_t values) { return values == 1 ? 1 : values / kValues<T>; };
  return {reinterpret_cast<const float*>(f.data), stride(f.row), stride(f.column)};
}

// Word p of the row or column of a factor that begins at `data`. The last word may be half full.
template <typename T>
float word_of(const T* data, int64_t along_k, int64_t p, int64_t k) {
  T values[kValues<T>] = {};
  for (int64_t v = 0; v < kValues<T> && p * kValues<T> + v < k; ++v) values[v] = data[(p * kValues<T> + v) * along_k];
  float word;
  std::memcpy(&word, values, sizeof word);
  return word;
}

template <typename T>
void copy_rows(Factor<T> a, int64_t m, int64_t k, float* to) {
  const int64_t words = words_of<T>(k), whole = k / kValues<T>;
  const Factor<float> in_words = as_words(a, a.column, a.row);
  for (int64_t i = 0; i < m; i += kRows, to += kRows * words) {
    const int64_t rows = std::min<int64_t>(kRows, m - i);
    int64_t p = 0;
    if (in_words.data && in_words.column == 1 && rows == kRows) {
      alignas(64) float block[kWidth * kWidth];
      for (; p + kWidth <= whole; p += kWidth) {
        transpose(in_words.data + i * in_words.row + p, in_words.row, kRows, block, kWidth);
        for (int q = 0; q < kWidth; ++q) std::memcpy(to + (p + q) * kRows, block + q * kWidth, kRows * sizeof(float));
      }
    }
    for (; p < words; ++p)
      for (int64_t y = 0; y < rows; ++y) to[p * kRows + y] = word_of(a.data + (i + y) * a.row, a.column, p, k);
  }
}

// Copies kWidth columns of a row of words, from rows whose values are adjacent.
void copy_word_row(const float* from, int64_t, float* to) { store(to, load(from)); }
void copy_word_row(const uint16_t* from, int64_t row, float* to) {
  typedef int16_t Row __attribute__((vector_size(2 * kWidth)));
  const Row x = load<Row>(from), y = load<Row>(from + row);
  store(to, __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26,
                                    11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

// Writes rows of `width` words; those after the first `columns` words are zero.
template <typename T>
void copy_columns(Factor<T> b, int64_t k, int64_t columns, int64_t width, float* to) {
  const int64_t words = words_of<T>(k), whole = k / kValues<T>;
  const Factor<float> in_words = as_words(b, b.row, b.column);
  const auto copy_rest = [&](int64_t first, int64_t last, int64_t p) {
    for (; p < words; ++p)
      for (int64_t j = first; j < last; ++j)
        to[p * width + j] = j < columns ? word_of(b.data + j * b.column, b.row, p, k) : 0.0f;
  };
  int64_t j = 0;
  for (; j + kWidth <= columns; j += kWidth) {
    int64_t p = 0;
    if (b.column == 1) {
      for (; p < whole; ++p) copy_word_row(b.data + p * kValues<T> * b.row + j, b.row, to + p * width + j);
    } else if (in_words.data && in_words.row == 1) {
      for (; p + kWidth <= whole; p += kWidth)
        transpose(in_words.data + j * in_words.column + p, in_words.column, kWidth, to + p * width + j, width);
    }
    copy_rest(j, j + kWidth, p);
  }
  if (j < width) copy_rest(j, width, 0);
}

int64_t width_of(int64_t columns) { return columns > kWidth ? kColumns : kWidth; }

// A block of c. `a` holds its rows over the current depth, in words; a_copy is a copy of them, or NULL.
template <typename T>
struct Block {
  int64_t m;
  Factor<float> a;
  const float* a_copy;

  template <int N>
  void run(const Strip& s, float* c) const {
    if (a_copy)
      strip_of_copy<T, N>(m, s, a_copy, c);
    else
      strip_in_place<T, N>(m, s, a, c);
  }
  void run(int64_t width, const Strip& s, float* c) const {
    if (width == kColumns)
      run<kVectors>(s, c);
    else
      run<1>(s, c);
  }
};

// For fewer columns than the strip is wide: computes them in a buffer, then updates c.
template <typename T>
void run_edge(const Block<T>& block, int64_t columns, int64_t width, const Strip& s, float* c) {
  alignas(64) float edge[kRows * kColumns];
  Strip beside = s;
  beside.ldc = kColumns, beside.beta = 0.0f;
  for (int64_t i = 0; i < block.m; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, block.m - i);
    Block<T> part{rows, block.a, block.a_copy ? block.a_copy + i * s.words : nullptr};
    part.a.data += i * block.a.row;
    part.run(width, beside, edge);
    for (int64_t y = 0; y < rows; ++y)
      for (int64_t x = 0; x < columns; ++x) {
        float& to = c[(i + y) * s.ldc + x];
        to = s.beta == 0.0f ? edge[y * kColumns + x] : edge[y * kColumns + x] + s.beta * to;
      }
  }
}

// One thread's part of the product.
template <typename T>
void multiply_part(const Product<T>& p) {
  static thread_local const Panels panels;
  constexpr int64_t kSteps = kDepth * kValues<T>;  // values of k
  const bool copies_b = p.b.column != 1 || p.m > kFewRows || kValues<T> > 1;
  for (int64_t first = 0; first < p.n; first += kPanel) {
    const int64_t columns = std::min(kPanel, p.n - first);
    for (int64_t depth = 0; depth < p.k; depth += kSteps) {
      const int64_t k = std::min(kSteps, p.k - depth), words = words_of<T>(k);
      Strip s{words, nullptr, 0, p.ldc, p.alpha, depth == 0 ? p.beta : 1.0f};
      const Factor<T> b{p.b.data + depth * p.b.row + first * p.b.column, p.b.row, p.b.column};
      if (copies_b) {
        float* to = panels.b();
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = width_of(columns - j);
          copy_columns<T>({b.data + j * b.column, b.row, b.column}, k, std::min(width, columns - j), width, to);
          to += words * width;
        }
      }
      for (int64_t i = 0; i < p.m; i += kHeight) {
        const Factor<T> a{p.a.data + i * p.a.row + depth * p.a.column, p.a.row, p.a.column};
        const Factor<float> in_words = as_words(a, a.column, a.row);
        const bool copies_a = p.n >= kFewColumns || !in_words.data || k % kValues<T> != 0;
        const Block<T> block{std::min(kHeight, p.m - i), in_words, copies_a ? panels.a() : nullptr};
        if (copies_a) copy_rows(a, block.m, k, panels.a());
        const float* copied = panels.b();
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = width_of(columns - j), used = std::min(width, columns - j);
          float* const c = p.c + i * p.ldc + first + j;
          s.b = copied, s.ldb = width;
          if constexpr (std::is_same_v<T, float>) {
            if (!copies_b && used == width) {
              s.b = b.data + j, s.ldb = b.row;
            } else if (!copies_b) {
              copy_columns<T>({b.data + j, b.row, 1}, k, used, width, panels.b());
              s.b = panels.b();
            }
          }
          if (used == width)
            block.run(width, s, c);
          else
            run_edge(block, used, width, s, c);
          if (copies_b) copied += words * width;
        }
      }
    }
  }
}

}  // namespace

template <typename T>
void multiply(const Product<T>& p) {
  // Threads divide the columns if there are enough, since each thread then copies its own part of b.
  constexpr int64_t kFlopsOfThread = 1 << 20;
  const bool by_columns = p.n >= 8 * kColumns || p.n >= p.m;
  const int64_t total = by_columns ? p.n : p.m, unit = by_columns ? kColumns : kRows;
  const int64_t units = (total + unit - 1) / unit;
  const int64_t flops_of_unit = std::max<int64_t>(1, 2 * unit * p.k * (by_columns ? p.m : p.n));
  const int64_t grain =
      std::max<int64_t>({1, (units + num_threads() - 1) / num_threads(), kFlopsOfThread / flops_of_unit});
  run_parallel(units, grain, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * unit, to = std::min(total, end * unit);
    Product<T> part = p;
    if (by_columns) {
      part.n = to - from;
      part.b.data += from * p.b.column;
      part.c += from;
    } else {
      part.m = to - from;
      part.a.data += from * p.a.row;
      part.c += from * p.ldc;
    }
    multiply_part(part);
  });
}

template <typename T>
bool can_multiply() {
  static const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") &&
                          (std::is_same_v<T, float> || __builtin_cpu_supports("avx512bf16"));
  return can;
}

template <typename T>
bool multiplies_faster(const Product<T>& p) {
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  constexpr int64_t kFewest = 16;
  const bool copies_little = p.b.column == 1 || p.m > 2 * kFewest;
  return is_amd && can_multiply<T>() && p.m >= kFewest && p.n >= kFewest && p.k >= kFewest && copies_little;
}

#else

template <typename T>
bool can_multiply() {
  return false;
}
template <typename T>
bool multiplies_faster(const Product<T>&) {
  return false;
}
template <typename T>
void multiply(const Product<T>&) {}

#endif

template void multiply(const Product<float>&);
template void multiply(const Product<uint16_t>&);
template bool can_multiply<float>();
template bool can_multiply<uint16_t>();
template bool multiplies_faster(const Product<float>&);
template bool multiplies_faster(const Product<uint16_t>&);

}  // namespace chassis
