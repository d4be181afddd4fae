// A T0 provider that computes nothing: it reads every operand and creates the gradients that the host expects. The time
// of a step with it is the time of the boundary and the host.
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class EmptyKernel final : public Kernel {
 public:
  void forward(Call& call) override { read_operands(call); }
  void backward_inputs(Call& call) override {
    read_operands(call);
    create_gradients(call);
  }
  void backward_params(Call& call) override { read_operands(call); }
  void forward_backward(Call& call) override {
    read_operands(call);
    create_gradients(call);
  }

 private:
  static void read_operands(const Call& call) {
    for (uint32_t i = 0; i < kMaxOperands; ++i)
      for (const BorrowedTensor& tensor :
           {call.input(i), call.param(i), call.output(i), call.grad_output(i), call.grad_param(i)})
        if (tensor) sink_ = tensor.view().data;
  }
  static void create_gradients(Call& call) {
    for (uint32_t i = 0; i < kMaxOperands; ++i)
      if (call.wants_grad_input(i) && !call.grad_input(i))
        call.set_grad_input(i, Tensor::create_like(call.host(), call.input(i)));
  }
  static constexpr uint32_t kMaxOperands = 5;
  static inline const void* volatile sink_ = nullptr;
};

class Empty final : public Ops {
 public:
  static constexpr std::string_view kDoc = "computes nothing";
  // The patterns that the plugins fused, aten and interval serve together.
  static constexpr std::string_view kPatterns[] = {
      "linear+cross_entropy", "add+rms_norm", "rms_norm",  "rope", "linear",
      "gated_activation",     "embedding",    "attention", "add"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    for (int i = 0; i < node.num_ops(); ++i)
      node.op(i).refuse_attrs_other_than({"eps", "inv_freq", "factor", "interleaved", "function", "ignore_index",
                                          "scale", "causal", "window", "chunk", "document", "prefix"});
    return 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
    if (node.pattern() == "linear+cross_entropy") out.flags(CHASSIS_KERNEL_FORWARD_BACKWARD);
    for (int i = 0; i < node.num_inputs(); ++i) out.keeps_input(static_cast<uint32_t>(i));
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { return std::make_unique<EmptyKernel>(); }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "license=Apache-2.0\n",
    Empty)
