// cross_entropy on whole logits.
#include "loss.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

class CrossEntropy : public AtenKernel {
 public:
  CrossEntropy(const Operators& aten, int64_t ignore_index) : AtenKernel(aten), rows_(aten, ignore_index) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0);
    const BorrowedTensor loss = call.make_output(0, wide(logits.dtype()), Shape{});
    aten_.zero_(loss);
    rows_.add_loss(wide_copy(logits), rows_.labels(call.input(1)), loss);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0), scale = call.grad_output(0);
    if (!scale || !call.wants_grad_input(0)) return;
    const Tensor gradient = wide_copy(logits);
    aten_.log_softmax_out(gradient, -1, false, gradient);
    rows_.to_gradient(gradient, rows_.labels(call.input(1)), scale);
    store_grad_input(call, 0, logits.dtype(), aten_.view(gradient, shape_of(logits)));
  }

 private:
  LossRows rows_;
};

std::unique_ptr<Kernel> make_cross_entropy(const Operators& aten, const NodeView& node) {
  return std::make_unique<CrossEntropy>(aten, node.op(0).attr_int("ignore_index", -100));
}

}  // namespace

std::span<const Entry> cross_entropy_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "cross_entropy",
       .make = make_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 6,
       .attrs = {"ignore_index"},
       .workspace = cross_entropy_workspace},
  };
  return kEntries;
}

}  // namespace aten
