// A tile of kRows rows and one panel is summed in registers.
#include "products.hpp"

#include <cstring>

#include "chassis/bf16.hpp"
namespace muon {
namespace {

constexpr int kWidth = chassis::ThisIsa::kVectorBytes / 4;
constexpr int kVectors = chassis::ThisIsa::kNumRegisters == 32 ? 4 : 2;
constexpr int kRows = 6;
constexpr int64_t kPanel = kWidth * kVectors;

typedef float Vector __attribute__((vector_size(chassis::ThisIsa::kVectorBytes)));

[[gnu::always_inline]] inline Vector load(const float* p) {
  Vector out;
  std::memcpy(&out, p, sizeof out);
  return out;
}

void pack(const float* b, int64_t k, int64_t n, int64_t row_stride, int64_t column_stride, int64_t index,
          float* packed) {
  const int64_t first = index * kPanel, count = std::min(kPanel, n - first);
  float* out = packed + first * k;
  for (int64_t i = 0; i < k; ++i, out += kPanel) {
    const float* row = b + i * row_stride + first * column_stride;
    for (int64_t j = 0; j < count; ++j) out[j] = row[j * column_stride];
    for (int64_t j = count; j < kPanel; ++j) out[j] = 0;
  }
}

// Multiplies `num_rows` rows from `a` on, which are k elements apart; adds `depth` products to sums of kPanel columns.
template <int num_rows>
[[gnu::always_inline]] inline void add_products(const float* a, int64_t k, const float* packed, int64_t depth,
                                                float* sums) {
  Vector total[num_rows][kVectors];
  for (int r = 0; r < num_rows; ++r)
    for (int v = 0; v < kVectors; ++v) total[r][v] = load(sums + r * kPanel + v * kWidth);
  for (int64_t i = 0; i < depth; ++i, packed += kPanel) {
    Vector b[kVectors];
    for (int v = 0; v < kVectors; ++v) b[v] = load(packed + v * kWidth);
    for (int r = 0; r < num_rows; ++r) {
      const float x = a[r * k + i];
      for (int v = 0; v < kVectors; ++v) total[r][v] += x * b[v];
    }
  }
  for (int r = 0; r < num_rows; ++r)
    for (int v = 0; v < kVectors; ++v) std::memcpy(sums + r * kPanel + v * kWidth, &total[r][v], sizeof(Vector));
}

template <int num_rows>
void multiply_rows(const Product& p, int64_t panel, int64_t row) {
  alignas(64) float sums[num_rows * kPanel] = {};
  const float* a = p.a + row * p.k;
  const float* packed = p.packed + panel * kPanel * p.k;
  add_products<num_rows>(a, p.k, packed, p.k, sums);
  const int64_t first = panel * kPanel, count = std::min(kPanel, p.n - first);
  for (int r = 0; r < num_rows; ++r) {
    float* out = p.out + (row + r) * p.n + first;
    const float* added = p.added == nullptr ? nullptr : p.added + (row + r) * p.n + first;
    for (int64_t j = 0; j < count; ++j) {
      const float product = p.alpha * sums[r * kPanel + j];
      out[j] = added == nullptr ? product : product + p.beta * added[j];
    }
  }
}

void multiply(const Product& p, int64_t panel, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) multiply_rows<kRows>(p, panel, row);
  for (; row < end; ++row) multiply_rows<1>(p, panel, row);
}

void round(const float* x, float alpha, const uint16_t* added, float beta, int64_t n, uint16_t* out) {
  if (added == nullptr)
    for (int64_t i = 0; i < n; ++i) out[i] = chassis::to_bf16(alpha * x[i]);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = chassis::to_bf16(alpha * x[i] + beta * chassis::from_bf16(added[i]));
}

void widen(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = chassis::from_bf16(x[i]);
}

}  // namespace

const Products& products(chassis::ThisIsa) {
  static constexpr Products kProducts = {kPanel, pack, multiply, round, widen};
  return kProducts;
}

}  // namespace muon
