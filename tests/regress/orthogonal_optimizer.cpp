// An optimizer like Muon (Jordan et al. 2024): the update is the momentum with its singular values driven towards 1,
// which needs the whole matrix. Vectors are divided by their norm.
#include <algorithm>
#include <cmath>
#include <vector>

#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

using Matrix = std::vector<float>;

// a [m, k] times b [n, k] transposed.
Matrix times_transposed(const Matrix& a, const Matrix& b, int64_t m, int64_t n, int64_t k) {
  Matrix out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t x = 0; x < k; ++x)
        sum += static_cast<double>(a[static_cast<size_t>(i * k + x)]) * b[static_cast<size_t>(j * k + x)];
      out[static_cast<size_t>(i * n + j)] = static_cast<float>(sum);
    }
  return out;
}

Matrix transposed(const Matrix& a, int64_t rows, int64_t columns) {
  Matrix out(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  return out;
}

// Newton-Schulz iteration x ← 1.5 x − 0.5 (x xᵀ) x; a matrix with more rows than columns is transposed first.
Matrix orthogonal(Matrix x, int64_t rows, int64_t columns) {
  double norm = 1e-12;
  for (float v : x) norm += static_cast<double>(v) * v;
  for (float& v : x) v = static_cast<float>(v / std::sqrt(norm));
  if (rows == 1) return x;
  if (rows > columns) return transposed(orthogonal(transposed(x, rows, columns), columns, rows), columns, rows);
  for (int i = 0; i < 5; ++i) {
    const Matrix squares = times_transposed(x, x, rows, rows, columns);
    const Matrix cubes = times_transposed(squares, transposed(x, rows, columns), rows, columns, rows);
    for (size_t e = 0; e < x.size(); ++e) x[e] = 1.5f * x[e] - 0.5f * cubes[e];
  }
  return x;
}

class Orthogonal final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "orthogonalized momentum of whole matrices";
  static const Options& options() {
    static const Options schema = {option("momentum", 0.9).range(0, 1).doc("share of the last update that is kept")};
    return schema;
  }
  explicit Orthogonal(const Host& host)
      : Optimizer(host), momentum_(static_cast<float>(option_value<double>(host, "momentum"))) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {matrix_state("momentum_buffer")};
    return kStates;
  }
  void step(const OptimizerStep& step) override {
    if (momentum_ == 1) fail_invalid("momentum is 1, which forgets no gradient; expected below 1");
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const auto param = step.param(i);
      const int64_t count = param.num_elements(), rows = param.sizes().size() == 2 ? param.size(0) : 1;
      auto* p = param.data<float>();
      const auto* g = step.grad(i).data<float>();
      auto* m = step.state(i, 0).data<float>();
      for (int64_t e = 0; e < count; ++e) m[e] = momentum_ * m[e] + g[e] * static_cast<float>(step.grad_scale());
      const Matrix update = orthogonal(Matrix(m, m + count), rows, count / rows);
      const auto lr = static_cast<float>(step.lr(i)), decay = static_cast<float>(step.weight_decay(i));
      for (int64_t e = 0; e < count; ++e) p[e] -= lr * (update[static_cast<size_t>(e)] + decay * p[e]);
    }
  }

 private:
  const float momentum_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", Orthogonal)
