// The iteration works on the wide side: a matrix with more rows than columns is transposed first.
#include "newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "chassis/task.hpp"
#include "products.hpp"

namespace muon {
namespace {

using namespace chassis;

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;  // maximize the slope at 0 (Jordan et al. 2024)
constexpr float kSmallestNorm = 1e-7f;
constexpr int64_t kRowBlock = 96;
constexpr int64_t kLargestPanel = 64;

const Products& best() {
  static const Products& found = for_best_isa([](auto isa) -> const Products& { return products(isa); });
  return found;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t padded(int64_t n) { return ceil_div(n, kLargestPanel) * kLargestPanel; }

// b[k, n] with any strides, into `packed`.
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

// In rows of fixed length, so that the number of threads has no effect.
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

void orthogonalize(const Host& host, float* x, int64_t rows, int64_t columns, int steps, float* scratch) {
  const int64_t small = std::min(rows, columns), large = std::max(rows, columns);
  float* gram = scratch;
  float* polynomial = gram + small * small;
  float* current = polynomial + small * small;
  float* next = current + small * large;
  float* packed = next + small * large;
  auto* of_rows = reinterpret_cast<double*>(scratch + (scratch_elements(rows, columns) - 2 * rows) / 2 * 2);

  const auto norm = static_cast<float>(std::sqrt(sum_of_squares(host, x, rows, columns, of_rows)));
  const float inverse = 1.0f / std::max(norm, kSmallestNorm);
  if (rows > columns)
    transpose(host, x, rows, columns, current);
  else
    std::copy_n(x, rows * columns, current);
  for (int64_t i = 0; i < small * large; ++i) current[i] *= inverse;

  for (int i = 0; i < steps; ++i) {
    pack(host, current, large, small, 1, large, packed);  // xᵀ
    multiply(host, {small, small, large, current, packed, nullptr, 1, 0, gram}, true);
    pack(host, gram, small, small, small, 1, packed);
    multiply(host, {small, small, small, gram, packed, gram, kC, kB, polynomial}, true);
    pack(host, current, small, large, large, 1, packed);
    multiply(host, {small, large, small, polynomial, packed, current, 1, kA, next}, false);
    std::swap(current, next);
  }
  if (rows > columns)
    transpose(host, current, columns, rows, x);
  else
    std::copy_n(current, rows * columns, x);
}

}  // namespace muon
