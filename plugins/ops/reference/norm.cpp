// rms_norm and layer_norm: x̂ = (x - mean) / deviation; rms_norm uses a mean of zero. The gain is offset + weight, or 1
// without a weight.
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

class Norm : public Kernel {
 public:
  Norm(bool centred, double eps, double offset) : centred_(centred), eps_(eps), offset_(offset) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    const int64_t n = x.size(-1), rows = x.num_elements() / n;
    const Values w = gain(call), b = bias ? read(bias) : Values(static_cast<size_t>(n));
    Values y = read(x);
    for (int64_t r = 0; r < rows; ++r) {
      normalise(&y[r * n], n);
      for (int64_t i = 0; i < n; ++i) y[r * n + i] = y[r * n + i] * w[i] + b[i];
    }
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, y);
  }

  // With d = dy · w: dx = (d - mean(d) - x̂ · mean(d · x̂)) / deviation, without the first mean for rms_norm.
  void backward_inputs(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const int64_t n = x.size(-1), rows = x.num_elements() / n;
    const Values w = gain(call), dy = read_grad_output(call, static_cast<size_t>(x.num_elements()));
    Values unit = read(x), dx(unit.size());
    for (int64_t r = 0; r < rows; ++r) {
      double* x_hat = &unit[r * n];
      const double inverse = normalise(x_hat, n);
      double mean_d = 0, mean_dx = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double d = dy[r * n + i] * w[i];
        mean_d += d / static_cast<double>(n);
        mean_dx += d * x_hat[i] / static_cast<double>(n);
      }
      if (!centred_) mean_d = 0;
      for (int64_t i = 0; i < n; ++i) dx[r * n + i] = inverse * (dy[r * n + i] * w[i] - mean_d - x_hat[i] * mean_dx);
    }
    store_grad_input(call, 0, x.dtype(), x.sizes(), dx);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const int64_t n = x.size(-1), rows = x.num_elements() / n;
    const Values dy = read_grad_output(call, static_cast<size_t>(x.num_elements()));
    Values unit = read(x), dweight(static_cast<size_t>(n)), dbias(static_cast<size_t>(n));
    for (int64_t r = 0; r < rows; ++r) {
      normalise(&unit[r * n], n);
      for (int64_t i = 0; i < n; ++i) {
        dweight[i] += dy[r * n + i] * unit[r * n + i];
        dbias[i] += dy[r * n + i];
      }
    }
    store_grad_param(call, 0, dweight);
    store_grad_param(call, 1, dbias);
  }

 private:
  Values gain(const Call& call) const {
    const BorrowedTensor weight = call.param(0);
    if (!weight) return Values(static_cast<size_t>(call.input(0).size(-1)), 1.0);
    Values w = read(weight);
    for (double& value : w) value += offset_;
    return w;
  }

  // In place; returns 1 / deviation.
  double normalise(double* x, int64_t n) const {
    double mean = 0, square = 0;
    if (centred_)
      for (int64_t i = 0; i < n; ++i) mean += x[i] / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
    const double inverse = 1 / std::sqrt(square + eps_);
    for (int64_t i = 0; i < n; ++i) x[i] = (x[i] - mean) * inverse;
    return inverse;
  }

  bool centred_;
  double eps_, offset_;
};

std::unique_ptr<Kernel> make_rms_norm(const NodeView& node) {
  return std::make_unique<Norm>(false, node.op(0).attr_float("eps"), node.op(0).attr_float("offset", 0));
}
std::unique_ptr<Kernel> make_layer_norm(const NodeView& node) {
  return std::make_unique<Norm>(true, node.op(0).attr_float("eps"), 0);
}

}  // namespace

std::span<const Entry> norm_entries() {
  static constexpr Entry kEntries[] = {
      {"rms_norm", make_rms_norm, 1, {"eps", "offset", "plain"}},
      {"layer_norm", make_layer_norm, 1, {"eps"}},
  };
  return kEntries;
}

}  // namespace reference
