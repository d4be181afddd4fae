// The ops provider "reference": every op but attention by naive loops on the CPU; tests compare others with it.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "values.hpp"

namespace {

using namespace chassis;

using reference::Entry;

constexpr std::span<const Entry> (*kSources[])() = {
    reference::dropout_entries, reference::elementwise_entries, reference::expert_entries,    reference::join_entries,
    reference::linear_entries,  reference::loss_entries,        reference::lookup_entries,    reference::norm_entries,
    reference::rope_entries,    reference::router_entries,      reference::topk_logp_entries,
};

const Entry& entry_of(const NodeView& node) {
  for (const auto entries : kSources)
    for (const Entry& entry : entries())
      if (entry.pattern == node.op(0).id()) return entry;
  refuse("does not compute op '", node.op(0).id(), "'");
}

class Reference : public Ops {
 public:
  static constexpr std::string_view kDoc = "naive and readable, in double precision on the CPU; the oracle of tests";
  static std::vector<std::string_view> patterns() { return patterns_of(kSources); }
  using Ops::Ops;

  double claim(const NodeView& node) override {
    const Entry& entry = entry_of(node);
    node.op(0).refuse_attrs_other_than(entry.attrs);
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    for (int i = 0; i < node.num_inputs(); ++i)
      if (node.has_input(i)) check_dtype(node.input(i).dtype());
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i)) check_dtype(node.param(i).dtype());
    if (entry.pattern.ends_with("activation")) {
      const auto function = node.op(0).attr_string("function");
      if (function != "silu" && function != "gelu" && function != "gelu_tanh" && function != "relu")
        refuse("does not compute activation '", function, "'");
    }
    return 100 * cost_ns(host(), node, 10);  // scalar loops in double precision
  }

  void infer(const NodeView& node, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
    if (!node.training()) return;
    for (uint32_t i = 0; i < static_cast<uint32_t>(node.num_inputs()); ++i)
      if (entry_of(node).keeps_inputs >> i & 1) out.keeps_input(i);
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return entry_of(node).make(node); }

 private:
  static void check_dtype(uint32_t dtype) {
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_F64 && dtype != CHASSIS_DTYPE_BF16 &&
        dtype != CHASSIS_DTYPE_I32)
      refuse("computes in float32, float64 and bfloat16, not ", dtype_name(dtype));
  }
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nrequires=chassis.task/1\noracle=1\nswappable=1\nlicense=Apache-2.0\n",
               Reference)
