// score: x · weightᵀ for a few columns, in fp32 and not rounded. In slabs of rows, since these are copied in fp32 where
// no product takes them as they are.
#include "workspace.hpp"

namespace aten {
namespace {

class Score : public AtenKernel {
 public:
  Score(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_x_(node.input(0), node.output(0)),
        planned_y_(node.output(0), node.input(0)),
        dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), weight = call.param(0);
    const BorrowedTensor y = call.make_output(0, wide(x.dtype()), planned_y_.in_call(x));
    const Tensor rows = matrix(x, weight.size(1)), out = matrix(y, weight.size(0)), weight_t = aten_.t(weight);
    for_slabs(rows.size(0), rows.size(1), [&](int64_t begin, int64_t count) {
      accumulate_product(aten_.narrow(out, 0, begin, count), 0, aten_.narrow(rows, 0, begin, count), weight_t);
    });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) call.set_grad_input(0, create(call, dy, dtype_, planned_x_.in_call(dy)));
    const Tensor weight = cast(call.param(0), dy.dtype()), rows = matrix(dy, weight.size(0)),
                 dx = matrix(call.grad_input(0), weight.size(1));
    for_slabs(dx.size(0), dx.size(1), [&](int64_t begin, int64_t count) {
      const Tensor part = aten_.narrow(dx, 0, begin, count), from = aten_.narrow(rows, 0, begin, count);
      if (!adds && part.dtype() == from.dtype()) return accumulate_product(part, 0, from, weight);
      const Tensor product = create(call, dy, dy.dtype(), Shape{count, weight.size(1)});
      accumulate_product(product, 0, from, weight);
      if (adds)
        aten_.add_(part, product);
      else
        aten_.copy_(part, product);
    });
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0);
    if (!dweight) return;
    if (!dy) {
      if (call.grad_param_beta(0) == 0) aten_.zero_(dweight);
      return;
    }
    const Tensor rows = matrix(dy, dweight.size(0)), x = matrix(call.input(0), dweight.size(1));
    float beta = call.grad_param_beta(0);
    for_slabs(x.size(0), x.size(1), [&](int64_t begin, int64_t count) {
      accumulate_product(dweight, std::exchange(beta, 1.0f), aten_.t(aten_.narrow(rows, 0, begin, count)),
                         aten_.narrow(x, 0, begin, count));
    });
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  uint32_t dtype_;  // of x
};

std::unique_ptr<Kernel> make_score(const Operators& aten, const NodeView& node) {
  return std::make_unique<Score>(aten, node);
}

}  // namespace

std::span<const Entry> score_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "score",
       .make = make_score,
       .keeps_inputs = 0b1,
       .passes = 2,
       .workspace = score_workspace,
       .keeps_for_weight = true},
  };
  return kEntries;
}

}  // namespace aten
