// rms_norm by formula, since ATen has no fused backward for it on the CPU; layer_norm by ATen's kernels.
#include "workspace.hpp"

namespace aten {
namespace {

// saved(0): 1 / sqrt(mean(x²) + eps), [B, T, 1].
class RmsNorm : public AtenKernel {
 public:
  RmsNorm(const Operators& aten, double eps, double offset) : AtenKernel(aten), eps_(eps), offset_(offset) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Tensor wide_x = cast(x, wide(x.dtype()));
    const Tensor squares = aten_.vector_norm(wide_x, 2.0, Shape{-1}, true);
    aten_.mul_(squares, squares);
    aten_.mul_scalar_(squares, 1.0 / static_cast<double>(x.size(-1)));
    aten_.add_scalar_(squares, eps_);
    Tensor inverse = aten_.rsqrt(squares);
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    if (offset_ == 0) {
      aten_.mul_out(wide_x, inverse, y);
      if (const BorrowedTensor weight = call.param(0)) aten_.mul_(y, cast(weight, x.dtype()));
    } else {  // rounded once, after the product
      const Tensor unit = aten_.mul(wide_x, inverse);
      aten_.mul_(unit, gain(call, wide(x.dtype())));
      aten_.copy_(y, unit);
    }
    call.save(0, std::move(inverse));
  }

  // dx = inverse · (d - x̂ · mean(d · x̂)), d = dy · weight, x̂ = x · inverse.
  void backward_inputs(Call& call) override {
    if (!call.grad_output(0) || !call.wants_grad_input(0)) return;
    const BorrowedTensor x = call.input(0);
    const uint32_t dtype = wide(x.dtype());
    const int64_t columns = x.size(-1);
    const Tensor weight = gain(call, dtype);
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    const Tensor all_dx = matrix(call.grad_input(0), columns);
    for_rows(call,
             [&](int64_t begin, int64_t rows, const Tensor& x_rows, const Tensor& dy_rows, const Tensor& inverse) {
               const Tensor dx = aten_.narrow(all_dx, 0, begin, rows);
               const Tensor unit = aten_.mul(x_rows, inverse);
               const Tensor d = !add && x.dtype() == dtype ? dx.retain() : create(call, x, dtype, Shape{rows, columns});
               if (weight)
                 aten_.mul_out(dy_rows, weight, d);
               else
                 aten_.copy_(d, dy_rows);
               const Tensor mean = aten_.sum_dims(aten_.mul(d, unit), Shape{-1}, true);
               aten_.mul_scalar_(mean, -1.0 / static_cast<double>(columns));
               aten_.addcmul_(d, unit, mean);
               aten_.mul_(d, inverse);
               if (add)
                 aten_.add_(dx, d);
               else if (x.dtype() != dtype)
                 aten_.copy_(dx, d);
             });
  }

  void backward_params(Call& call) override {
    const BorrowedTensor buffer = call.grad_param(0);
    if (!buffer) return;
    if (call.grad_param_beta(0) == 0) aten_.zero_(buffer);
    if (!call.grad_output(0)) return;
    for_rows(call, [&](int64_t, int64_t, const Tensor& x, const Tensor& dy, const Tensor& inverse) {
      const Tensor product = aten_.mul(x, inverse);
      aten_.mul_(product, dy);
      aten_.add_(buffer, aten_.sum_dims(product, Shape{0}));
    });
  }

 private:
  // offset + weight; absent without a weight.
  Tensor gain(const Call& call, uint32_t dtype) const {
    if (!call.param(0)) return {};
    if (offset_ == 0) return cast(call.param(0), dtype);
    Tensor sum = aten_.to_dtype(call.param(0), DtypeArg{dtype}, false, true);
    aten_.add_scalar_(sum, offset_);
    return sum;
  }

  // body(first row, rows, x, dy, inverse): matrices of those rows, x and dy in the wide dtype.
  template <typename Body>
  void for_rows(Call& call, Body&& body) const {
    const BorrowedTensor x = call.input(0);
    const uint32_t dtype = wide(x.dtype());
    const int64_t columns = x.size(-1);
    const Tensor all_x = matrix(x, columns), all_dy = matrix(call.grad_output(0), columns),
                 all = matrix(call.saved(0), 1);
    for_slabs(all_x.size(0), columns, [&](int64_t begin, int64_t rows) {
      body(begin, rows, cast(aten_.narrow(all_x, 0, begin, rows), dtype),
           cast(aten_.narrow(all_dy, 0, begin, rows), dtype), aten_.narrow(all, 0, begin, rows));
    });
  }

  double eps_, offset_;
};

// saved: mean and 1 / standard deviation, [B, T, 1].
class LayerNorm : public AtenKernel {
 public:
  LayerNorm(const Operators& aten, double eps) : AtenKernel(aten), eps_(eps) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const uint32_t dtype = wide(x.dtype());
    auto [y, mean, inverse] = aten_.native_layer_norm.tensors<3>(
        cast(x, dtype), Shape{x.size(-1)}, cast(call.param(0), dtype), wide_bias(call, dtype), eps_);
    call.set_output(0, cast(y, x.dtype()));
    call.save(0, std::move(mean));
    call.save(1, std::move(inverse));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0) || !call.wants_grad_input(0)) return;
    store_grad_input(call, 0, call.input(0).dtype(), std::move(backward(call, {true, false, false})[0]));
  }

  void backward_params(Call& call) override {
    if (!call.grad_output(0)) {
      for (uint32_t i = 0; i < 2; ++i)
        if (call.grad_param(i) && call.grad_param_beta(i) == 0) aten_.zero_(call.grad_param(i));
      return;
    }
    const bool weight = static_cast<bool>(call.grad_param(0)), bias = static_cast<bool>(call.grad_param(1));
    const auto gradients = backward(call, {false, weight, bias});
    if (weight) store_grad_param(call, 0, gradients[1]);
    if (bias) store_grad_param(call, 1, gradients[2]);
  }

 private:
  Tensor wide_bias(const Call& call, uint32_t dtype) const {
    return call.param(1) ? cast(call.param(1), dtype) : Tensor();
  }
  std::array<Tensor, 3> backward(const Call& call, std::array<bool, 3> wanted) const {
    const BorrowedTensor x = call.input(0);
    const uint32_t dtype = wide(x.dtype());
    return aten_.native_layer_norm_backward.tensors<3>(cast(call.grad_output(0), dtype), cast(x, dtype),
                                                       Shape{x.size(-1)}, call.saved(0), call.saved(1),
                                                       cast(call.param(0), dtype), wide_bias(call, dtype), wanted);
  }

  double eps_;
};

std::unique_ptr<Kernel> make_rms_norm(const Operators& aten, const NodeView& node) {
  return std::make_unique<RmsNorm>(aten, node.op(0).attr_float("eps"), node.op(0).attr_float("offset", 0));
}

std::unique_ptr<Kernel> make_layer_norm(const Operators& aten, const NodeView& node) {
  return std::make_unique<LayerNorm>(aten, node.op(0).attr_float("eps"));
}

}  // namespace

std::span<const Entry> norm_entries() {
  // layer_norm has no out variant that takes undefined parameters, so it makes its own outputs.
  static constexpr Entry kEntries[] = {
      {.pattern = "rms_norm",
       .make = make_rms_norm,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b1,
       .passes = 6,
       .attrs = {"eps", "offset", "plain"},
       .workspace = rms_norm_workspace,
       .saved_rows = 1},
      {.pattern = "layer_norm",
       .make = make_layer_norm,
       .keeps_inputs = 0b1,
       .passes = 4,
       .attrs = {"eps"},
       .workspace = layer_norm_workspace,
       .makes_outputs = true,
       .saved_rows = 2},
  };
  return kEntries;
}

}  // namespace aten
