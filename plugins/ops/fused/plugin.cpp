// The ops provider "fused": norms, rope, gated activation, embedding and heads by fused loops, in fp32 and bf16 on the
// CPU. It refuses everything else (linear, other dtypes, other devices).
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "head_sizes.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;
using fused::Shared;

class Fused final : public Ops {
 public:
  static constexpr std::string_view kDoc =
      "norm, rope, gated activation, embedding and heads by fused loops; fp32 and bf16 on the CPU";
  static constexpr std::string_view kPatterns[] = {"linear+softcap+cross_entropy",
                                                   "linear+softcap+token_logp",
                                                   "linear+cross_entropy",
                                                   "linear+token_logp",
                                                   "add+rms_norm",
                                                   "rms_norm",
                                                   "layer_norm",
                                                   "rope",
                                                   "gated_activation",
                                                   "embedding"};
  explicit Fused(const Host& host) : Ops(host) {}

  double claim(const NodeView& node) override {
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    const std::string pattern = node.pattern();
    const uint32_t dtype = dtype_of(node);
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16)
      refuse("computes in f32 and bf16, not ", dtype_name(dtype));
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i) && node.param(i).dtype() != dtype)
        refuse("parameter ", i, " is ", dtype_name(node.param(i).dtype()), ", the rows are ", dtype_name(dtype));
    for (int i = 0; i < node.num_ops(); ++i)
      node.op(i).refuse_attrs_other_than({"eps", "offset", "inv_freq", "factor", "interleaved", "rotary_dim",
                                          "long_inv_freq", "long_from", "function", "cap", "ignore_index"});
    const bool whole_head = is_head(pattern), sums = pattern == "add+rms_norm";
    if (whole_head && node.num_params() != 1) refuse("does not add a bias");
    if (whole_head && node.op(node.num_ops() - 1).input(1).num_elements() != node.input(1).num_elements())
      refuse("the labels are not the second input");
    if (pattern == "rope" && node.op(0).attr_int("interleaved", 0) != 0)
      refuse("rotates halves, not interleaved pairs");
    if (pattern == "gated_activation") {
      const auto function = node.op(0).attr_string("function");
      if (function != "silu" && function != "gelu_tanh") refuse("computes silu and gelu_tanh, not ", function);
    }
    if (sums && node.num_outputs() != 2) refuse("the sum is not used elsewhere");
    return cost_ns(host(), node, whole_head || sums ? 4 : pattern == "gated_activation" ? 3 : 2);
  }

  void infer(const NodeView& node, Infer& out) override {
    const std::string pattern = node.pattern();
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS);
    if (is_head(pattern)) {
      const fused::HeadSizes sizes = fused::head_sizes(host(), node);
      const bool trains_weight = node.param(0).needs_grad();
      out.flags(CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
      if (pattern.ends_with("+cross_entropy")) {
        out.flags(CHASSIS_KERNEL_FORWARD_BACKWARD).keeps_input(0).keeps_input(1);
        out.workspace(sizes.softmax_bytes, trains_weight ? sizes.kept_bytes : sizes.input_bytes);
      } else {
        const bool saves_gradient = fused::saves_input_gradient(node), saves_sums = fused::saves_log_sums(node);
        if (saves_gradient) out.saves(dtype_of(node), node.input(0).local_shape());
        if (saves_sums) out.saves(CHASSIS_DTYPE_F32, {node.input(1).num_elements()});
        if (trains_weight) out.keeps_input(0).keeps_input(1).keeps_output(0);
        out.workspace(saves_gradient ? sizes.input_bytes : sizes.softmax_bytes, trains_weight ? sizes.weight_bytes : 0);
      }
    } else if (pattern == "rope") {
      out.keeps_input(1).overwrites_input(0);
    } else if (pattern == "gated_activation") {
      out.keeps_input(0).keeps_input(1).overwrites_input(0).overwrites_input(1);
    } else if (pattern == "embedding") {
      out.keeps_input(0);
    } else if (pattern == "layer_norm") {
      const OperandView x = node.input(0);
      out.flags(CHASSIS_KERNEL_ADDS_GRAD_INPUTS).saves(CHASSIS_DTYPE_F32, {x.num_elements() / x.size(-1), 2});
      out.keeps_input(0);
    } else {
      const OperandView x = node.input(0);
      out.flags(CHASSIS_KERNEL_ADDS_GRAD_INPUTS).saves(CHASSIS_DTYPE_F32, {x.num_elements() / x.size(-1)});
      if (pattern == "rms_norm")
        out.keeps_input(0);
      else
        out.flags(CHASSIS_KERNEL_INNER_OUTPUTS).keeps_output(0).overwrites_input(0).overwrites_input(1);
    }
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    const std::string pattern = node.pattern();
    if (pattern.ends_with("+cross_entropy")) return fused::make_head(host(), node);
    if (pattern.ends_with("+token_logp")) return fused::make_token_logp(host(), node);
    if (pattern == "rope") return fused::make_rope(shared_, node);
    if (pattern == "gated_activation") return fused::make_gated_activation(node);
    if (pattern == "embedding") return fused::make_embedding(node);
    if (pattern == "layer_norm") return fused::make_layer_norm(node);
    return fused::make_norm(node, pattern == "add+rms_norm");
  }

 private:
  static bool is_head(std::string_view pattern) {
    return pattern.ends_with("+cross_entropy") || pattern.ends_with("+token_logp");
  }
  // The dtype of the rows that are computed; the results of a head are fp32.
  static uint32_t dtype_of(const NodeView& node) {
    return is_head(node.pattern()) ? node.param(0).dtype() : node.output(0).dtype();
  }

  Shared shared_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.memory/1\n"
    "requires=chassis.gemm/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Fused)
