// The iteration works on the wide side: a matrix with more rows than columns is transposed first.
#include "newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "chassis/bf16.hpp"
#include "chassis/gemm.hpp"
#include "chassis/task.hpp"
#include "products.hpp"

namespace muon {
namespace {

using namespace chassis;

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;  // maximize the slope at 0 (Jordan et al. 2024)
constexpr float kSmallestNorm = 1e-7f;
constexpr int64_t kRowBlock = 96;
constexpr int64_t kLargestPanel = 64;
constexpr int64_t kGrain = 16384;  // elements

const Products& best() {
  static const Products& found = for_best_isa([](auto isa) -> const Products& { return products(isa); });
  return found;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t padded(int64_t n) { return ceil_div(n, kLargestPanel) * kLargestPanel; }

// Packs b[k, n], with any strides, into `packed`.
void pack(const Host& host, const float* b, int64_t k, int64_t n, int64_t row_stride, int64_t column_stride,
          float* packed) {
  parallel_for(host, ceil_div(n, best().panel), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) best().pack(b, k, n, row_stride, column_stride, i, packed);
  });
}

// A symmetric product computes the tiles at and above the diagonal, then mirrors them.
void multiply(const Host& host, const Product& p, bool is_symmetric) {
  const int64_t panels = ceil_div(p.n, best().panel), blocks = ceil_div(p.m, kRowBlock);
  parallel_for(host, panels * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t panel = i / blocks, row = i % blocks * kRowBlock;
      if (is_symmetric && row >= (panel + 1) * best().panel) continue;
      best().multiply(p, panel, row, std::min(p.m, row + kRowBlock));
    }
  });
  if (!is_symmetric) return;
  parallel_for(host, p.n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < i; ++j) p.out[i * p.n + j] = p.out[j * p.n + i];
  });
}

// Sums in rows of fixed length, so that the number of threads has no effect.
double sum_of_squares(const Host& host, const float* x, int64_t rows, int64_t columns, double* of_rows) {
  parallel_for(host, rows, std::max<int64_t>(1, 16384 / columns), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < columns; ++j) {
        const double value = x[i * columns + j];
        sum += value * value;
      }
      of_rows[i] = sum;
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) sum += of_rows[i];
  return sum;
}

void transpose(const Host& host, const float* x, int64_t rows, int64_t columns, float* out) {
  parallel_for(host, columns, 64, [&](int64_t begin, int64_t end) {
    constexpr int64_t kTile = 32;
    for (int64_t first = 0; first < rows; first += kTile)
      for (int64_t j = begin; j < end; ++j)
        for (int64_t i = first; i < std::min(rows, first + kTile); ++i) out[j * rows + i] = x[i * columns + j];
  });
}

}  // namespace

int64_t scratch_elements(int64_t rows, int64_t columns) {
  const int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  const int64_t packed = std::max({large * padded(small), small * padded(small), small * padded(large)});
  return 2 * small * small + 2 * small * large + packed + 2 * rows + 64;
}

namespace {

// Rounds values to bf16 in place.
void round_values(const Host& host, float* x, int64_t count) {
  parallel_for(host, count, kGrain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kPiece = 1024;
    uint16_t piece[kPiece];
    for (int64_t some; begin < end; begin += some) {
      some = std::min(kPiece, end - begin);
      best().round(x + begin, 1, nullptr, 0, some, piece);
      best().widen(piece, some, x + begin);
    }
  });
}

// x / ‖x‖, transposed if it has more rows than columns. If `rounds`, rounds x, its norm and the quotient to bf16, as
// torch.optim.Muon does.
void normalize(const Host& host, float* x, int64_t rows, int64_t columns, bool rounds, double* of_rows, float* out) {
  const int64_t count = rows * columns;
  if (rounds) round_values(host, x, count);
  auto norm = static_cast<float>(std::sqrt(sum_of_squares(host, x, rows, columns, of_rows)));
  if (rounds) norm = from_bf16(to_bf16(norm));
  norm = std::max(norm, kSmallestNorm);
  if (rows > columns)
    transpose(host, x, rows, columns, out);
  else
    std::copy_n(x, count, out);
  if (!rounds) {
    const float inverse = 1.0f / norm;
    for (int64_t i = 0; i < count; ++i) out[i] *= inverse;
    return;
  }
  for (int64_t i = 0; i < count; ++i) out[i] /= norm;
  round_values(host, out, count);
}

// Multiplies in bf16 by the host's products. If a result is symmetric, only the part at and above the diagonal is
// computed.
class Bf16Iteration {
 public:
  // `x` is the input matrix and the result; sums are computed there, too.
  Bf16Iteration(const Host& host, int64_t small, int64_t large, float* x, float* scratch)
      : host_(host),
        small_(small),
        large_(large),
        sums_(x),
        x_(reinterpret_cast<uint16_t*>(scratch)),
        gram_(x_ + small * large),
        polynomial_(gram_ + small * small) {}

  static bool is_fast(const Host& host, int64_t small, int64_t large) {
    return gemm_scratch_bytes(host, CHASSIS_DTYPE_BF16, CHASSIS_DTYPE_F32, small, large, small) == 0;
  }

  void run(int steps) const {
    round(sums_, 1, nullptr, 0, small_ * large_, x_);
    for (int i = 0; i < steps; ++i) {
      multiply_symmetric(x_, large_, CHASSIS_GEMM_TRANSPOSE_B, 1, nullptr, gram_);
      multiply_symmetric(gram_, small_, 0, kC, gram_, polynomial_);
      chassis_gemm_problem_t p = problem(small_, large_, small_);
      p.a = polynomial_, p.lda = small_;
      p.b = x_, p.ldb = large_;
      p.c = sums_, p.ldc = large_;
      gemm(host_, p);
      round(sums_, 1, x_, kA, small_ * large_, x_);
    }
    parallel_for(host_, small_ * large_, kGrain,
                 [&](int64_t begin, int64_t end) { best().widen(x_ + begin, end - begin, sums_ + begin); });
  }

 private:
  static constexpr int64_t kBlock = 128, kTile = 32;

  static chassis_gemm_problem_t problem(int64_t m, int64_t n, int64_t k) {
    return gemm_problem(CHASSIS_DTYPE_BF16, CHASSIS_DTYPE_F32, m, n, k);
  }

  void round(const float* from, float alpha, const uint16_t* added, float beta, int64_t count, uint16_t* out) const {
    parallel_for(host_, count, kGrain, [&](int64_t begin, int64_t end) {
      best().round(from + begin, alpha, added == nullptr ? nullptr : added + begin, beta, end - begin, out + begin);
    });
  }

  // out = alpha · y · yᵀ + b · added, for y[small, depth]; `flags` say whether yᵀ is y, transposed, or y itself, which
  // is then symmetric. Computes blocks of rows from the diagonal to the end, then their mirror images.
  void multiply_symmetric(const uint16_t* y, int64_t depth, uint32_t flags, float alpha, const uint16_t* added,
                          uint16_t* out) const {
    const bool transposes = (flags & CHASSIS_GEMM_TRANSPOSE_B) != 0;
    for (int64_t first = 0, last; first < small_; first = last) {
      last = small_ - first < 2 * kBlock ? small_ : first + kBlock;
      chassis_gemm_problem_t p = problem(last - first, small_ - first, depth);
      p.flags = flags;
      p.a = y + first * depth, p.lda = depth;
      p.b = y + (transposes ? first * depth : first), p.ldb = depth;
      p.c = sums_ + first * small_ + first, p.ldc = small_;
      gemm(host_, p);
    }
    parallel_for(host_, small_, kTile, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i * small_ + i;
        best().round(sums_ + at, alpha, added == nullptr ? nullptr : added + at, kB, small_ - i, out + at);
      }
    });
    parallel_for(host_, (small_ + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
      for (int64_t tile = begin; tile < end; ++tile)
        for (int64_t column = 0; column <= tile; ++column) mirror(tile * kTile, column * kTile, out);
    });
  }

  // Copies a tile below the diagonal from the tile above it.
  void mirror(int64_t row, int64_t column, uint16_t* out) const {
    for (int64_t i = row; i < std::min(small_, row + kTile); ++i)
      for (int64_t j = column; j < std::min(i, column + kTile); ++j) out[i * small_ + j] = out[j * small_ + i];
  }

  const Host& host_;
  const int64_t small_, large_;
  float* const sums_;
  uint16_t *const x_, *const gram_, *const polynomial_;
};

// `x` is the input matrix and the result.
void iterate_in_fp32(const Host& host, int64_t small, int64_t large, int steps, bool rounds, float* x, float* scratch) {
  float *current = x, *next = scratch;
  float* gram = next + small * large;
  float* polynomial = gram + small * small;
  float* packed = polynomial + small * small;
  const auto finish = [&](float* matrix, int64_t count) {
    if (rounds) round_values(host, matrix, count);
  };
  for (int i = 0; i < steps; ++i) {
    pack(host, current, large, small, 1, large, packed);  // xᵀ
    multiply(host, {small, small, large, current, packed, nullptr, 1, 0, gram}, true);
    finish(gram, small * small);
    pack(host, gram, small, small, small, 1, packed);
    multiply(host, {small, small, small, gram, packed, gram, kC, kB, polynomial}, true);
    finish(polynomial, small * small);
    pack(host, current, small, large, large, 1, packed);
    multiply(host, {small, large, small, polynomial, packed, current, 1, kA, next}, false);
    finish(next, small * large);
    std::swap(current, next);
  }
  if (current != x) std::copy_n(current, small * large, x);
}

}  // namespace

void orthogonalize(const Host& host, float* x, int64_t rows, int64_t columns, int steps, Precision precision,
                   float* scratch) {
  const int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  auto* of_rows = reinterpret_cast<double*>(scratch + (scratch_elements(rows, columns) - 2 * rows) / 2 * 2);
  float* const current = scratch;
  float* const rest = current + small * large;
  const bool rounds = precision == Precision::kBf16;
  normalize(host, x, rows, columns, rounds, of_rows, current);
  if (rounds && Bf16Iteration::is_fast(host, small, large))
    Bf16Iteration(host, small, large, current, rest).run(steps);
  else
    iterate_in_fp32(host, small, large, steps, rounds, current, rest);
  if (rows > columns)
    transpose(host, current, columns, rows, x);
  else
    std::copy_n(current, rows * columns, x);
}

}  // namespace muon
