// activation, gated_activation, add, mul, scale, softcap, reshape.
#include <string>

#include "workspace.hpp"

namespace aten {
namespace {

class Function {
 public:
  Function(const Operators& aten, std::string_view name) : aten_(aten), name_(name) {}

  void evaluate(const BorrowedTensor& x, const BorrowedTensor& out) const {
    if (name_ == "silu")
      aten_.silu_out(x, out);
    else if (name_ == "relu")
      aten_.relu_out(x, out);
    else
      aten_.gelu_out(x, approximation(), out);
  }
  // dx may share dy's memory.
  void backward(const BorrowedTensor& dy, const BorrowedTensor& x, const BorrowedTensor& dx) const {
    if (name_ == "silu")
      aten_.silu_backward_out(dy, x, dx);
    else if (name_ == "relu")
      aten_.threshold_backward_out(dy, x, 0, dx);
    else
      aten_.gelu_backward_out(dy, x, approximation(), dx);
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

// The factor is rounded to the dtype of x, as a tensor of one element would be.
class Scale : public AtenKernel {
 public:
  Scale(const Operators& aten, double factor) : AtenKernel(aten), factor_(factor) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    aten_.mul_out(x, factor_like(call, x), y);
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy && call.wants_grad_input(0)) store_grad_input(call, 0, dy.dtype(), aten_.mul(dy, factor_like(call, dy)));
  }

 private:
  Tensor factor_like(const Call& call, const BorrowedTensor& x) const {
    // If x is a scalar, such as a part of the loss, a factor of one dim would not fit.
    Tensor factor = create(call, x, x.dtype(), x.sizes().empty() ? Shape{} : Shape{1});
    aten_.fill_(factor, factor_);
    return factor;
  }
  double factor_;
};

// cap · tanh(x / cap), in fp32.
class Softcap : public AtenKernel {
 public:
  Softcap(const Operators& aten, double cap) : AtenKernel(aten), cap_(cap) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    const Tensor t = tanh_of(x);
    aten_.mul_scalar_(t, cap_);
    aten_.copy_(y, t);
  }
  // dx = dy · (1 - tanh²)
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const Tensor t = tanh_of(x);
    aten_.tanh_backward_out(cast(dy, t.dtype()), t, t);
    store_grad_input(call, 0, x.dtype(), t.retain());
  }

 private:
  Tensor tanh_of(const BorrowedTensor& x) const {
    Tensor t = aten_.to_dtype(x, DtypeArg{wide(x.dtype())}, false, true);
    aten_.mul_scalar_(t, 1.0 / cap_);
    aten_.tanh_(t);
    return t;
  }
  double cap_;
};

class Clip : public AtenKernel {
 public:
  Clip(const Operators& aten, double limit) : AtenKernel(aten), limit_(limit) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    aten_.clamp_out(x, -limit_, limit_, call.make_output(0, x.dtype(), x.sizes()));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    Tensor dx = aten_.to_dtype(dy, DtypeArg{x.dtype()}, false, true);
    aten_.masked_fill_(dx, aten_.gt_scalar(x, limit_), 0);
    aten_.masked_fill_(dx, aten_.lt_scalar(x, -limit_), 0);
    store_grad_input(call, 0, x.dtype(), std::move(dx));
  }

 private:
  double limit_;
};

// Backward scales by the same factors.
class PositionScale : public AtenKernel {
 public:
  PositionScale(const Operators& aten, double floor_scale, double attn_scale)
      : AtenKernel(aten), floor_scale_(floor_scale), attn_scale_(attn_scale) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    scale(call, x, call.make_output(0, x.dtype(), x.sizes()));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    Tensor dx = Tensor::create_like(call.host(), dy);
    scale(call, dy, dx);
    store_grad_input(call, 0, dy.dtype(), std::move(dx));
  }

 private:
  void scale(const Call& call, const BorrowedTensor& x, const BorrowedTensor& y) const {
    const int64_t rows = call.input(1).num_elements(), columns = rows == 0 ? 0 : x.num_elements() / rows;
    const Tensor factors =
        aten_.to_dtype(aten_.view(call.input(1), Shape{rows, 1}), DtypeArg{wide(x.dtype())}, false, true);
    aten_.add_scalar_(factors, 1.0);
    aten_.div_scalar_(factors, floor_scale_);
    aten_.floor_(factors);
    aten_.log1p_(factors);
    aten_.mul_scalar_(factors, attn_scale_);
    aten_.add_scalar_(factors, 1.0);
    const Tensor all_x = matrix(x, columns), all_y = matrix(y, columns);
    for_slabs(rows, columns, [&](int64_t begin, int64_t count) {  // in the dtype of the factors, rounded once
      aten_.mul_out(aten_.narrow(all_x, 0, begin, count), aten_.narrow(factors, 0, begin, count),
                    aten_.narrow(all_y, 0, begin, count));
    });
  }
  double floor_scale_, attn_scale_;
};

// Copies, unless the host gives the output the input's memory.
class Reshape : public AtenKernel {
 public:
  Reshape(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), planned_x_(node.input(0), node.output(0)), planned_y_(node.output(0), node.input(0)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Shape shape = planned_y_.in_call(x);
    const BorrowedTensor y = call.make_output(0, x.dtype(), shape);
    if (y.view().data != x.view().data) aten_.copy_(y, aten_.view(x, shape_of(y)));
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (dy) store_grad_input(call, 0, dy.dtype(), aten_.view(dy, planned_x_.in_call(dy)));
  }

 private:
  PlannedSizes planned_x_, planned_y_;
};

void check_function(const NodeView& node) {
  const auto function = node.op(0).attr_string("function");
  if (function != "silu" && function != "gelu" && function != "gelu_tanh" && function != "relu")
    refuse("does not compute activation '", function, "'");
}

std::unique_ptr<Kernel> make_activation(const Operators& aten, const NodeView& node) {
  return std::make_unique<Activation>(aten, node.op(0).attr_string("function"));
}

std::unique_ptr<Kernel> make_gated_activation(const Operators& aten, const NodeView& node) {
  return std::make_unique<GatedActivation>(aten, node.op(0).attr_string("function"));
}

std::unique_ptr<Kernel> make_add(const Operators& aten, const NodeView&) { return std::make_unique<Add>(aten); }

std::unique_ptr<Kernel> make_mul(const Operators& aten, const NodeView&) { return std::make_unique<Mul>(aten); }

std::unique_ptr<Kernel> make_scale(const Operators& aten, const NodeView& node) {
  return std::make_unique<Scale>(aten, node.op(0).attr_float("factor"));
}

std::unique_ptr<Kernel> make_softcap(const Operators& aten, const NodeView& node) {
  return std::make_unique<Softcap>(aten, node.op(0).attr_float("cap"));
}

std::unique_ptr<Kernel> make_clip(const Operators& aten, const NodeView& node) {
  return std::make_unique<Clip>(aten, node.op(0).attr_float("limit"));
}

std::unique_ptr<Kernel> make_position_scale(const Operators& aten, const NodeView& node) {
  return std::make_unique<PositionScale>(aten, node.op(0).attr_float("floor_scale"),
                                         node.op(0).attr_float("attn_scale"));
}

std::unique_ptr<Kernel> make_reshape(const Operators& aten, const NodeView& node) {
  return std::make_unique<Reshape>(aten, node);
}

}  // namespace

std::span<const Entry> elementwise_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "activation",
       .make = make_activation,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b1,
       .passes = 2,
       .attrs = {"function"},
       .check = check_function},
      {.pattern = "gated_activation",
       .make = make_gated_activation,
       .keeps_inputs = 0b11,
       .overwrites_inputs = 0b1,
       .passes = 5,
       .attrs = {"function"},
       .check = check_function},
      {.pattern = "add", .make = make_add, .overwrites_inputs = 0b11, .passes = 3},
      {.pattern = "mul", .make = make_mul, .keeps_inputs = 0b11, .overwrites_inputs = 0b11, .passes = 3},
      {.pattern = "scale", .make = make_scale, .overwrites_inputs = 0b1, .passes = 2, .attrs = {"factor"}},
      {.pattern = "softcap",
       .make = make_softcap,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b1,
       .passes = 5,
       .attrs = {"cap"},
       .workspace = softcap_workspace},
      {.pattern = "clip",
       .make = make_clip,
       .keeps_inputs = 0b1,
       .passes = 2,
       .attrs = {"limit"},
       .workspace = clip_workspace},
      {.pattern = "position_scale",
       .make = make_position_scale,
       .keeps_inputs = 0b10,
       .overwrites_inputs = 0b1,
       .passes = 2,
       .attrs = {"floor_scale", "attn_scale"},
       .workspace = position_scale_workspace},
      {.pattern = "reshape", .make = make_reshape, .overwrites_inputs = 0b1, .passes = 2},
  };
  return kEntries;
}

}  // namespace aten
