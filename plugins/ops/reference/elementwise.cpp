// activation, gated_activation, add, mul, scale, position_scale, softcap, clip, reshape.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "values.hpp"

namespace reference {
namespace {

struct Function {
  double value, slope;
};

Function evaluate(std::string_view name, double x) {
  if (name == "silu") {
    const double s = 1 / (1 + std::exp(-x));
    return {x * s, s * (1 + x * (1 - s))};
  }
  if (name == "relu") return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0};
  if (name == "gelu") {
    const double phi = 0.5 * (1 + std::erf(x / std::numbers::sqrt2));
    return {x * phi, phi + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi)};
  }
  const double c = std::sqrt(2 / std::numbers::pi);  // gelu_tanh
  const double t = std::tanh(c * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)};
}

class Activation : public Kernel {
 public:
  Activation(std::string function, bool gated) : function_(std::move(function)), gated_(gated) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values y = read(x), up = gated_ ? read(call.input(1)) : Values(y.size(), 1.0);
    for (size_t i = 0; i < y.size(); ++i) y[i] = evaluate(function_, y[i]).value * up[i];
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values dx = read(x), up = gated_ ? read(call.input(1)) : Values(dx.size(), 1.0);
    const Values dy = read_grad_output(call, dx.size());
    for (size_t i = 0; i < dx.size(); ++i) {
      const Function f = evaluate(function_, dx[i]);
      dx[i] = dy[i] * f.slope * up[i];
      up[i] = dy[i] * f.value;
    }
    store_grad_input(call, 0, x.dtype(), x.sizes(), dx);
    if (gated_) store_grad_input(call, 1, x.dtype(), x.sizes(), up);
  }

 private:
  std::string function_;
  bool gated_;
};

class Add : public Kernel {
 public:
  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0);
    Values y = read(a);
    const Values b = read(call.input(1));
    for (size_t i = 0; i < y.size(); ++i) y[i] += b[i];
    write_output(call, 0, a.dtype(), {a.sizes().begin(), a.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    for (uint32_t i = 0; i < 2; ++i) store_grad_input(call, i, dy.dtype(), dy.sizes(), read(dy));
  }
};

class Mul : public Kernel {
 public:
  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0);
    Values y = read(a);
    const Values b = read(call.input(1));
    for (size_t i = 0; i < y.size(); ++i) y[i] *= b[i];
    write_output(call, 0, a.dtype(), {a.sizes().begin(), a.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    for (uint32_t i = 0; i < 2; ++i) {
      Values gradient = read(dy);
      const Values other = read(call.input(1 - i));
      for (size_t j = 0; j < gradient.size(); ++j) gradient[j] *= other[j];
      store_grad_input(call, i, dy.dtype(), dy.sizes(), gradient);
    }
  }
};

class Scale : public Kernel {
 public:
  explicit Scale(double factor) : factor_(factor) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, scaled(x));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), dy.sizes(), scaled(dy));
  }

 private:
  Values scaled(const BorrowedTensor& x) const {
    const double factor = rounded_to(x.dtype(), factor_);
    Values y = read(x);
    for (double& value : y) value *= factor;
    return y;
  }

  double factor_;
};

class ChannelScale : public Kernel {
 public:
  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, scaled(call, x));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), dy.sizes(), scaled(call, dy));
  }

  void backward_params(Call& call) override {
    const Values x = read(call.input(0)), dy = read_grad_output(call, x.size());
    Values dweight(static_cast<size_t>(call.param(0).num_elements()));
    for (size_t i = 0; i < x.size(); ++i) dweight[i % dweight.size()] += dy[i] * x[i];
    store_grad_param(call, 0, dweight);
  }

 private:
  static Values scaled(const Call& call, const BorrowedTensor& x) {
    const Values weight = read(call.param(0));
    Values y = read(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] *= weight[i % weight.size()];
    return y;
  }
};

class Softcap : public Kernel {
 public:
  explicit Softcap(double cap) : cap_(cap) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values y = read(x);
    for (double& value : y) value = cap_ * std::tanh(value / cap_);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values dx = read(x);
    const Values dy = read_grad_output(call, dx.size());
    for (size_t i = 0; i < dx.size(); ++i) {
      const double t = std::tanh(dx[i] / cap_);
      dx[i] = dy[i] * (1 - t * t);
    }
    store_grad_input(call, 0, x.dtype(), x.sizes(), dx);
  }

 private:
  double cap_;
};

class Clip : public Kernel {
 public:
  explicit Clip(double limit) : limit_(limit) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    Values y = read(x);
    for (double& value : y) value = std::min(std::max(value, -limit_), limit_);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Values xs = read(x);
    Values dx = read_grad_output(call, xs.size());
    const double limit = rounded_to(x.dtype(), limit_);
    for (size_t i = 0; i < dx.size(); ++i)
      if (std::abs(xs[i]) > limit) dx[i] = 0;
    store_grad_input(call, 0, x.dtype(), x.sizes(), dx);
  }

 private:
  double limit_;
};

class PositionScale : public Kernel {
 public:
  PositionScale(double floor_scale, double attn_scale) : floor_scale_(floor_scale), attn_scale_(attn_scale) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    write_output(call, 0, x.dtype(), {x.sizes().begin(), x.sizes().end()}, scaled(call, x));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), dy.sizes(), scaled(call, dy));
  }

 private:
  Values scaled(const Call& call, const BorrowedTensor& x) const {
    const BorrowedTensor positions = call.input(1);
    const int64_t tokens = positions.num_elements(), width = tokens == 0 ? 0 : x.num_elements() / tokens;
    Values y = read(x);
    for (int64_t t = 0; t < tokens; ++t) {
      const double steps = std::floor((positions.data<int32_t>()[t] + 1) / floor_scale_);
      for (int64_t i = 0; i < width; ++i) y[t * width + i] *= 1 + attn_scale_ * std::log1p(steps);
    }
    return y;
  }

  double floor_scale_, attn_scale_;
};

class Reshape : public Kernel {
 public:
  explicit Reshape(const NodeView& node)
      : planned_x_(node.input(0), node.output(0)), planned_y_(node.output(0), node.input(0)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    write_output(call, 0, x.dtype(), planned_y_.in_call(x), read(x));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), planned_x_.in_call(dy), read(dy));
  }

 private:
  PlannedSizes planned_x_, planned_y_;
};

std::unique_ptr<Kernel> make_activation(const NodeView& node) {
  return std::make_unique<Activation>(std::string(node.op(0).attr_string("function")), false);
}
std::unique_ptr<Kernel> make_gated_activation(const NodeView& node) {
  return std::make_unique<Activation>(std::string(node.op(0).attr_string("function")), true);
}
std::unique_ptr<Kernel> make_add(const NodeView&) { return std::make_unique<Add>(); }
std::unique_ptr<Kernel> make_mul(const NodeView&) { return std::make_unique<Mul>(); }
std::unique_ptr<Kernel> make_scale(const NodeView& node) {
  return std::make_unique<Scale>(node.op(0).attr_float("factor"));
}
std::unique_ptr<Kernel> make_channel_scale(const NodeView&) { return std::make_unique<ChannelScale>(); }
std::unique_ptr<Kernel> make_softcap(const NodeView& node) {
  return std::make_unique<Softcap>(node.op(0).attr_float("cap"));
}
std::unique_ptr<Kernel> make_clip(const NodeView& node) {
  return std::make_unique<Clip>(node.op(0).attr_float("limit"));
}
std::unique_ptr<Kernel> make_position_scale(const NodeView& node) {
  return std::make_unique<PositionScale>(node.op(0).attr_float("floor_scale"), node.op(0).attr_float("attn_scale"));
}
std::unique_ptr<Kernel> make_reshape(const NodeView& node) { return std::make_unique<Reshape>(node); }

}  // namespace

std::span<const Entry> elementwise_entries() {
  static constexpr Entry kEntries[] = {
      {"activation", make_activation, 1, {"function"}},
      {"gated_activation", make_gated_activation, 3, {"function"}},
      {"add", make_add, 0, {}},
      {"mul", make_mul, 3, {}},
      {"scale", make_scale, 0, {"factor"}},
      {"channel_scale", make_channel_scale, 1, {}},
      {"softcap", make_softcap, 1, {"cap"}},
      {"clip", make_clip, 1, {"limit"}},
      {"position_scale", make_position_scale, 2, {"floor_scale", "attn_scale"}},
      {"reshape", make_reshape, 0, {}},
  };
  return kEntries;
}

}  // namespace reference
