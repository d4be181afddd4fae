// activation, gated_activation, add, mul, reshape.
#include <string>

#include "kernels.hpp"

namespace aten {
namespace {

class Function {
 public:
  Function(const Operators& aten, std::string_view name) : aten_(aten), name_(name) {}

  void evaluate(const BorrowedTensor& x, const BorrowedTensor& out) const {
    if (name_ == "silu") aten_.silu_out(x, out);
    else if (name_ == "relu") aten_.relu_out(x, out);
    else aten_.gelu_out(x, approximation(), out);
  }
  // dx may share dy's memory.
  void backward(const BorrowedTensor& dy, const BorrowedTensor& x, const BorrowedTensor& dx) const {
    if (name_ == "silu") aten_.silu_backward_out(dy, x, dx);
    else if (name_ == "relu") aten_.threshold_backward_out(dy, x, 0, dx);
    else aten_.gelu_backward_out(dy, x, approximation(), dx);
  }

 private:
  const char* approximation() const { return name_ == "gelu_tanh" ? "tanh" : "none"; }
  const Operators& aten_;
  std::string name_;
};

class Activation : public AtenKernel {
 public:
  Activation(const Operators& aten, std::string_view function) : AtenKernel(aten), function_(aten, function) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    function_.evaluate(x, call.make_output(0, x.dtype(), x.sizes()));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    Tensor dx = Tensor::create_like(call.host(), x);
    function_.backward(dy, x, dx);
    store_grad_input(call, 0, x.dtype(), std::move(dx));
  }

 private:
  Function function_;
};

// f(gate) · up; backward recomputes f(gate).
class GatedActivation : public AtenKernel {
 public:
  GatedActivation(const Operators& aten, std::string_view function) : AtenKernel(aten), function_(aten, function) {}

  void forward(Call& call) override {
    const BorrowedTensor gate = call.input(0), up = call.input(1);
    const BorrowedTensor y = call.make_output(0, gate.dtype(), gate.sizes());
    function_.evaluate(gate, y);
    aten_.mul_(y, up);
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), gate = call.input(0), up = call.input(1);
    if (!dy) return;
    if (call.wants_grad_input(1)) {
      Tensor dup = Tensor::create_like(call.host(), gate);
      function_.evaluate(gate, dup);
      aten_.mul_(dup, dy);
      store_grad_input(call, 1, up.dtype(), std::move(dup));
    }
    if (call.wants_grad_input(0)) {
      Tensor dgate = aten_.mul(dy, up);
      function_.backward(dgate, gate, dgate);
      store_grad_input(call, 0, gate.dtype(), std::move(dgate));
    }
  }

 private:
  Function function_;
};

class Add : public AtenKernel {
 public:
  using AtenKernel::AtenKernel;
  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0), b = call.input(1);
    aten_.add_out(a, b, 1, call.make_output(0, a.dtype(), a.sizes()));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    for (uint32_t i = 0; i < 2; ++i) store_grad_input(call, i, dy.dtype(), dy.retain());
  }
};

class Mul : public AtenKernel {
 public:
  using AtenKernel::AtenKernel;
  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0), b = call.input(1);
    aten_.mul_out(a, b, call.make_output(0, a.dtype(), a.sizes()));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    for (uint32_t i = 0; i < 2; ++i)
      if (call.wants_grad_input(i)) store_grad_input(call, i, dy.dtype(), aten_.mul(dy, call.input(1 - i)));
  }
};

// Copies, unless the host gives the output the input's memory.
class Reshape : public AtenKernel {
 public:
  Reshape(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), planned_x_(shape_of(node.input(0))), planned_y_(shape_of(node.output(0))) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Shape shape = with_rows_of(x, planned_y_);
    const BorrowedTensor y = call.make_output(0, x.dtype(), shape);
    if (y.view().data != x.view().data) aten_.copy_(y, aten_.view(x, shape_of(y)));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), aten_.view(dy, with_rows_of(dy, planned_x_)));
  }

 private:
  Shape planned_x_, planned_y_;
};

}  // namespace

std::unique_ptr<Kernel> make_activation(const Operators& aten, const NodeView& node) {
  return std::make_unique<Activation>(aten, node.op(0).attr_string("function"));
}
std::unique_ptr<Kernel> make_gated_activation(const Operators& aten, const NodeView& node) {
  return std::make_unique<GatedActivation>(aten, node.op(0).attr_string("function"));
}
std::unique_ptr<Kernel> make_add(const Operators& aten, const NodeView&) { return std::make_unique<Add>(aten); }
std::unique_ptr<Kernel> make_mul(const Operators& aten, const NodeView&) { return std::make_unique<Mul>(aten); }
std::unique_ptr<Kernel> make_reshape(const Operators& aten, const NodeView& node) {
  return std::make_unique<Reshape>(aten, node);
}

}  // namespace aten
