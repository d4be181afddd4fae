// y = x · weightᵀ + bias. The products for parameter gradients write directly into their fp32 buffers.
#include "workspace.hpp"

namespace aten {
namespace {

class Linear : public AtenKernel {
 public:
  Linear(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), planned_x_(node.input(0), node.output(0)), planned_y_(node.output(0), node.input(0)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), bias = call.param(1);
    const Tensor weight = cast(call.param(0), x.dtype()), weight_t = aten_.t(weight);
    const BorrowedTensor y = call.make_output(0, x.dtype(), planned_y_.in_call(x));
    const Tensor rows = matrix(x, weight.size(1)), out = matrix(y, weight.size(0));
    if (bias && has_few_rows(out, weight_t)) {
      aten_.copy_(out, cast(bias, x.dtype()));
      multiply(out, rows, weight_t, 1, 1);
    } else if (bias) {
      aten_.addmm_out(cast(bias, x.dtype()), rows, weight_t, 1.0, 1.0, out);
    } else {
      multiply(out, rows, weight_t);
    }
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const Tensor weight = cast(call.param(0), dy.dtype()), rows = matrix(dy, weight.size(0));
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, create(call, dy, dy.dtype(), planned_x_.in_call(dy)));
    accumulate_product(matrix(call.grad_input(0), weight.size(1)), add, rows, weight);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0), dbias = call.grad_param(1);
    if (!dy) {
      for (const BorrowedTensor* buffer : {&dweight, &dbias})
        if (*buffer && call.grad_param_beta(buffer == &dbias) == 0) aten_.zero_(*buffer);
      return;
    }
    const int64_t out = call.param(0).size(0);
    const Tensor rows = matrix(dy, out);
    if (dweight)
      accumulate_product(dweight, call.grad_param_beta(0), aten_.t(rows), matrix(call.input(0), dweight.size(1)));
    if (dbias) store_grad_param(call, 1, aten_.sum_dims(rows, Shape{0}, false, DtypeArg{dbias.dtype()}));
  }

 private:
  PlannedSizes planned_x_, planned_y_;
};

std::unique_ptr<Kernel> make_linear(const Operators& aten, const NodeView& node) {
  return std::make_unique<Linear>(aten, node);
}

}  // namespace

std::span<const Entry> linear_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear",
       .make = make_linear,
       .keeps_inputs = 0b1,
       .passes = 1,
       .workspace = linear_workspace,
       .keeps_for_weight = true},
  };
  return kEntries;
}

}  // namespace aten
