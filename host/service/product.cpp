// The loops of Goto and van de Geijn (2008): a panel of b stays in the caches while blocks of a pass by; a tile of 12
// rows and 32 columns of c stays in registers.
#include "host/service/product.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "host/service/threads.hpp"

namespace chassis {

#ifdef __AVX512F__

namespace {

constexpr int kWidth = 16, kRows = 12, kVectors = 2;
constexpr int64_t kColumns = kVectors * kWidth;
// Terms summed in registers at once; rows of a, which fill most of a level-2 cache of 1 MiB; columns of b.
constexpr int64_t kDepth = 384, kHeight = 480, kPanel = 1024;
// With fewer columns or rows the other factor is read in place, since a copy would be read only once or twice.
constexpr int64_t kFewColumns = 64, kFewRows = 48;

typedef float Vector __attribute__((vector_size(4 * kWidth)));

Vector load(const float* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
void store(float* p, Vector v) { std::memcpy(p, &v, sizeof v); }

// Memory of one thread, kept for the next product.
class Panels {
 public:
  Panels() : data_(static_cast<float*>(::operator new(kFloats * sizeof(float), std::align_val_t{64}))) {}
  float* a() const { return data_.get(); }
  float* b() const { return data_.get() + kHeight * kDepth; }

 private:
  static constexpr int64_t kFloats = (kHeight + kPanel) * kDepth;
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> data_;
};

// A tile of M rows and N vectors of columns. Step 1 of a is a_column long, its rows are a_row apart.
template <int M, int N>
void tile(int64_t k, const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t ldb, float* c,
          int64_t ldc, float alpha, float beta) {
  Vector sum[M][N] = {};
  for (int64_t p = 0; p < k; ++p) {
    Vector row[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) row[j] = load(b + p * ldb + j * kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < M; ++i) {
      const float factor = a[i * a_row + p * a_column];
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) sum[i][j] += factor * row[j];
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

// What tiles of N vectors of columns share.
struct Strip {
  int64_t k;
  const float* b;
  int64_t ldb, ldc;
  float alpha, beta;
};

template <int N, int M = kRows>
void short_tile(int64_t m, const Strip& s, const float* a, int64_t a_row, int64_t a_column, float* c) {
  if constexpr (M > 0) {
    if (m == M) return tile<M, N>(s.k, a, a_row, a_column, s.b, s.ldb, c, s.ldc, s.alpha, s.beta);
    short_tile<N, M - 1>(m, s, a, a_row, a_column, c);
  }
}

// The copied block of a holds tiles of kRows rows one after the other, in each the kRows values of a step side by side.
template <int N>
void strip_of_copy(int64_t m, const Strip& s, const float* a, float* c) {
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows)
    tile<kRows, N>(s.k, a + i * s.k, 1, kRows, s.b, s.ldb, c + i * s.ldc, s.ldc, s.alpha, s.beta);
  short_tile<N>(m - i, s, a + i * s.k, 1, kRows, c + i * s.ldc);
}

template <int N>
void strip_in_place(int64_t m, const Strip& s, Factor a, float* c) {
  for (int64_t i = 0; i < m; i += kRows)
    short_tile<N>(std::min<int64_t>(kRows, m - i), s, a.data + i * a.row, a.row, a.column, c + i * s.ldc);
}

// `rows` rows of 16, which become the columns of 16 rows; the other columns are zero.
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

void copy_rows(Factor a, int64_t m, int64_t k, float* to) {
  for (int64_t i = 0; i < m; i += kRows, to += kRows * k) {
    const int64_t rows = std::min<int64_t>(kRows, m - i);
    const float* from = a.data + i * a.row;
    int64_t p = 0;
    if (a.column == 1 && rows == kRows) {
      alignas(64) float block[kWidth * kWidth];
      for (; p + kWidth <= k; p += kWidth) {
        transpose(from + p, a.row, kRows, block, kWidth);
        for (int q = 0; q < kWidth; ++q)
          std::memcpy(to + (p + q) * kRows, block + q * kWidth, kRows * sizeof(float));
      }
    }
    for (; p < k; ++p)
      for (int64_t y = 0; y < rows; ++y) to[p * kRows + y] = from[y * a.row + p * a.column];
  }
}

// Writes k rows of `width` values, of which those behind `columns` are zero.
void copy_columns(Factor b, int64_t k, int64_t columns, int64_t width, float* to) {
  int64_t j = 0;
  if (b.column == 1) {
    for (; j + kWidth <= columns; j += kWidth)
      for (int64_t p = 0; p < k; ++p) store(to + p * width + j, load(b.data + p * b.row + j));
  } else if (b.row == 1) {
    for (; j + kWidth <= columns; j += kWidth) {
      int64_t p = 0;
      for (; p + kWidth <= k; p += kWidth)
        transpose(b.data + j * b.column + p, b.column, kWidth, to + p * width + j, width);
      for (; p < k; ++p)
        for (int64_t x = j; x < j + kWidth; ++x) to[p * width + x] = b.data[p + x * b.column];
    }
  }
  for (; j < width; ++j)
    for (int64_t p = 0; p < k; ++p) to[p * width + j] = j < columns ? b.data[p * b.row + j * b.column] : 0.0f;
}

int64_t width_of(int64_t columns) { return columns > kWidth ? kColumns : kWidth; }

// A block of c: `a` holds its rows and this depth, copied if `a_copy` is set.
struct Block {
  int64_t m;
  Factor a;
  const float* a_copy;

  template <int N>
  void run(const Strip& s, float* c) const {
    if (a_copy) strip_of_copy<N>(m, s, a_copy, c);
    else strip_in_place<N>(m, s, a, c);
  }
  void run(int64_t width, const Strip& s, float* c) const {
    if (width == kColumns) run<kVectors>(s, c);
    else run<1>(s, c);
  }
};

// Fewer columns than the strip is wide: computed beside c.
void run_edge(const Block& block, int64_t columns, int64_t width, const Strip& s, float* c) {
  alignas(64) float edge[kRows * kColumns];
  Strip beside = s;
  beside.ldc = kColumns, beside.beta = 0.0f;
  for (int64_t i = 0; i < block.m; i += kRows) {
    const int64_t rows = std::min<int64_t>(kRows, block.m - i);
    Block part{rows, block.a, block.a_copy ? block.a_copy + i * s.k : nullptr};
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
void multiply_part(const Product& p) {
  static thread_local const Panels panels;
  const bool copies_a = p.n >= kFewColumns, copies_b = p.b.column != 1 || p.m > kFewRows;
  for (int64_t first = 0; first < p.n; first += kPanel) {
    const int64_t columns = std::min(kPanel, p.n - first);
    for (int64_t depth = 0; depth < p.k; depth += kDepth) {
      const int64_t k = std::min(kDepth, p.k - depth);
      Strip s{k, nullptr, 0, p.ldc, p.alpha, depth == 0 ? p.beta : 1.0f};
      const Factor b{p.b.data + depth * p.b.row + first * p.b.column, p.b.row, p.b.column};
      if (copies_b) {
        float* to = panels.b();
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = width_of(columns - j);
          copy_columns({b.data + j * b.column, b.row, b.column}, k, std::min(width, columns - j), width, to);
          to += k * width;
        }
      }
      for (int64_t i = 0; i < p.m; i += kHeight) {
        Block block{std::min(kHeight, p.m - i),
                    {p.a.data + i * p.a.row + depth * p.a.column, p.a.row, p.a.column},
                    copies_a ? panels.a() : nullptr};
        if (copies_a) copy_rows(block.a, block.m, k, panels.a());
        const float* copied = panels.b();
        for (int64_t j = 0; j < columns; j += kColumns) {
          const int64_t width = width_of(columns - j), used = std::min(width, columns - j);
          float* const c = p.c + i * p.ldc + first + j;
          s.b = copied, s.ldb = width;
          if (!copies_b && used == width) {
            s.b = b.data + j, s.ldb = b.row;
          } else if (!copies_b) {
            copy_columns({b.data + j, b.row, 1}, k, used, width, panels.b());
            s.b = panels.b();
          }
          if (used == width) block.run(width, s, c);
          else run_edge(block, used, width, s, c);
          if (copies_b) copied += k * width;
        }
      }
    }
  }
}

}  // namespace

void multiply(const Product& p) {
  // Threads divide the columns, since each then copies its own part of b.
  constexpr int64_t kFlopsOfThread = 1 << 20;
  const bool by_columns = p.n >= 8 * kColumns || p.n >= p.m;
  const int64_t total = by_columns ? p.n : p.m, unit = by_columns ? kColumns : kRows;
  const int64_t units = (total + unit - 1) / unit;
  const int64_t grain = std::max<int64_t>({1, (units + num_threads() - 1) / num_threads(),
                                           kFlopsOfThread / std::max<int64_t>(1, 2 * unit * p.k *
                                                                                     (by_columns ? p.m : p.n))});
  run_parallel(units, grain, [&](int64_t begin, int64_t end) {
    const int64_t from = begin * unit, to = std::min(total, end * unit);
    Product part = p;
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

bool can_multiply() {
  static const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return can;
}

bool multiplies_faster(const Product& p) {
  static const bool is_amd = __builtin_cpu_is("amd") != 0;
  constexpr int64_t kFewest = 16;
  const bool copies_little = p.b.column == 1 || p.m > 2 * kFewest;
  return is_amd && can_multiply() && p.m >= kFewest && p.n >= kFewest && p.k >= kFewest && copies_little;
}

#else

bool can_multiply() { return false; }
bool multiplies_faster(const Product&) { return false; }
void multiply(const Product&) {}

#endif

}  // namespace chassis
