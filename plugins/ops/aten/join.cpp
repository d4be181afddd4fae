// slice and concat: copies between parts of the last dim.
#include "workspace.hpp"

namespace aten {
namespace {

class Slice : public AtenKernel {
 public:
  Slice(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_x_(node.input(0), node.output(0)),
        planned_y_(node.output(0), node.input(0)),
        first_(node.op(0).attr_int("first")),
        size_(node.output(0).size(-1)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    aten_.copy_(call.make_output(0, x.dtype(), planned_y_.in_call(x)), aten_.narrow(x, -1, first_, size_));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    if (const BorrowedTensor sum = call.grad_input(0)) {
      aten_.add_(aten_.narrow(sum, -1, first_, size_), dy);
      return;
    }
    call.set_grad_input(0, create(call, dy, dy.dtype(), planned_x_.in_call(dy)));
    aten_.zero_(call.grad_input(0));
    aten_.copy_(aten_.narrow(call.grad_input(0), -1, first_, size_), dy);
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  int64_t first_, size_;
};

class Concat : public AtenKernel {
 public:
  Concat(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_y_(node.output(0), node.input(0)),
        sizes_{node.input(0).size(3), node.input(1).size(3)},
        heads_{node.input(0).size(2), node.input(1).size(2)} {}

  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0), b = call.input(1);
    const BorrowedTensor y = call.make_output(0, a.dtype(), planned_y_.in_call(a));
    aten_.copy_(aten_.narrow(y, -1, 0, sizes_[0]), a);
    aten_.copy_(aten_.narrow(y, -1, sizes_[0], sizes_[1]), b);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    for (uint32_t i = 0; i < 2; ++i) {
      if (!call.wants_grad_input(i)) continue;
      const Tensor part = aten_.narrow(dy, -1, i == 0 ? 0 : sizes_[0], sizes_[i]);
      const bool sums = heads_[i] != heads_[0];
      const Tensor gradient = sums ? aten_.sum_dims(part, Shape{2}, true, DtypeArg{wide(dy.dtype())}) : part.retain();
      if (const BorrowedTensor sum = call.grad_input(i)) {
        aten_.add_(sum, gradient);
        continue;
      }
      Shape shape = shape_of(dy);
      shape[2] = heads_[i], shape[3] = sizes_[i];
      call.set_grad_input(i, create(call, dy, dy.dtype(), shape));
      aten_.copy_(call.grad_input(i), gradient);
    }
  }

 private:
  PlannedSizes planned_y_;
  int64_t sizes_[2], heads_[2];
};

std::unique_ptr<Kernel> make_slice(const Operators& aten, const NodeView& node) {
  return std::make_unique<Slice>(aten, node);
}
std::unique_ptr<Kernel> make_concat(const Operators& aten, const NodeView& node) {
  return std::make_unique<Concat>(aten, node);
}

}  // namespace

std::span<const Entry> join_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "slice", .make = make_slice, .passes = 2, .attrs = {"first"}},
      {.pattern = "concat", .make = make_concat, .passes = 2, .workspace = concat_workspace},
  };
  return kEntries;
}

}  // namespace aten
