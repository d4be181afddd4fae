// The ops provider "aten": every op but attention by LibTorch's operators, on the CPU and on CUDA.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "workspace.hpp"

namespace {

using namespace chassis;
using aten::Entry;
using aten::Operators;

constexpr std::span<const Entry> (*kSources[])() = {
    aten::branch_entries,      aten::cross_entropy_entries, aten::dropout_entries,
    aten::elementwise_entries, aten::expert_entries,        aten::expert_row_entries,
    aten::join_entries,        aten::linear_entries,        aten::linear_cross_entropy_entries,
    aten::lookup_entries,      aten::norm_entries,          aten::partial_cross_entropy_entries,
    aten::rope_entries,        aten::router_entries,        aten::score_entries,
    aten::token_logp_entries,  aten::topk_logp_entries,
};

const Entry& entry_of(const NodeView& node) {
  const std::string pattern = node.pattern();
  for (const auto entries : kSources)
    for (const Entry& entry : entries())
      if (entry.pattern == pattern) return entry;
  refuse("does not compute op '", pattern, "'");
}

bool is_float(uint32_t dtype) {
  return dtype == CHASSIS_DTYPE_F32 || dtype == CHASSIS_DTYPE_F64 || dtype == CHASSIS_DTYPE_BF16 ||
         dtype == CHASSIS_DTYPE_F16;
}

class Aten : public Ops {
 public:
  static constexpr std::string_view kDoc = "every op but attention, by LibTorch's operators; CPU and CUDA";
  static std::vector<std::string_view> patterns() { return patterns_of(kSources); }
  explicit Aten(const Host& host) : Ops(host), aten_(host) {}

  double claim(const NodeView& node) override {
    const Entry& entry = entry_of(node);
    for (int i = 0; i < node.num_ops(); ++i) node.op(i).refuse_attrs_other_than(entry.attrs);
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i) && !is_float(node.param(i).dtype()))
        refuse("parameter ", i, " is ", dtype_name(node.param(i).dtype()), ", expected a floating type");
    if (entry.check != nullptr) entry.check(node);
    return cost_ns(host(), node, entry.passes);
  }

  void infer(const NodeView& node, Infer& out) override {
    const Entry& entry = entry_of(node);
    out.flags(CHASSIS_KERNEL_ADDS_GRAD_INPUTS | (entry.makes_outputs ? 0 : CHASSIS_KERNEL_HOST_OUTPUTS) |
              (entry.is_fused_backward ? CHASSIS_KERNEL_FORWARD_BACKWARD : 0) |
              (entry.writes_inner ? CHASSIS_KERNEL_INNER_OUTPUTS : 0));
    out.raw().overwrites_inputs = entry.overwrites_inputs;
    if (node.training()) {
      const bool trains = aten::any_param_needs_grad(node);
      out.raw().keeps_inputs = entry.keeps_for_weight && !trains ? 0 : entry.keeps_inputs;
      if (entry.keeps_x_for_weight && !trains) out.raw().keeps_inputs &= ~1u;
      if (entry.is_weighted && node.has_input(2) && node.input(2).needs_grad()) out.keeps_input(0);
      out.raw().keeps_outputs = entry.keeps_output ? 0b1 : 0;
      if (entry.saves_gradient && node.input(0).needs_grad())
        out.saves(node.input(0).dtype(), node.input(0).local_shape());
      if (entry.saved_rows > 0) {
        auto shape = aten::shape_of(node.input(0));
        shape.back() = 1;
        for (int i = 0; i < entry.saved_rows; ++i) out.saves(aten::wide(node.input(0).dtype()), shape);
      }
    }
    if (entry.workspace != nullptr) entry.workspace(host(), node, out);
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return entry_of(node).make(aten_, node); }

 private:
  Operators aten_;
};

}  // namespace

CHASSIS_PLUGIN(ATEN_OPERATORS(ATEN_LINE)
               "requires=chassis.dispatch/1\nrequires=chassis.tensor/1\nrequires=chassis.task/1\n"
               "requires=chassis.gemm/1\n"
               "swappable=1\n"
               "license=Apache-2.0\n",
               Aten)
