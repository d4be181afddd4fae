// The attention provider "interval": all masks, grouped heads, Dqk ≠ Dv, in fp32 on the CPU.
#include "chassis/plugin.hpp"
#include "attention.hpp"
#include "chassis/cost.hpp"
#include "chassis/task.hpp"
#include "intervals.hpp"

namespace {

using namespace chassis;

class Interval final : public Ops {
 public:
  static constexpr std::string_view kDoc = "attention by tiles that skip hidden keys; all masks; fp32 on the CPU";
  static constexpr std::string_view kPatterns[] = {"attention"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"scale", "causal", "window", "chunk", "document", "prefix", "softcap"});
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    if (node.input(0).dtype() != CHASSIS_DTYPE_F32) refuse("computes in f32, not ", dtype_name(node.input(0).dtype()));
    constexpr double kFlopsPerNs = 60;  // measured with AVX-512
    const OperandView q = node.input(0), k = node.input(1);
    const double pairs = static_cast<double>(interval::visible_pairs(interval::Mask(node.op(0)), q.size(1), k.size(1)));
    return attention_cost_ns(host(), node, pairs, k.size(0) * k.size(2), kFlopsPerNs);
  }

  void infer(const NodeView& node, Infer& out) override {
    const OperandView q = node.input(0), k = node.input(1), v = node.input(2);
    const auto threads = static_cast<uint64_t>(num_threads(host()));
    const int64_t keys = k.size(1);
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS).keeps_input(0).keeps_input(1).keeps_input(2).keeps_input(3).keeps_input(4);
    out.keeps_output(0).saves(CHASSIS_DTYPE_F32, {q.size(0), q.size(2), q.size(1)});
    out.workspace(
        threads * interval::forward_scratch_bytes(keys) + static_cast<uint64_t>(k.num_elements()) * 4,
        threads * interval::backward_scratch_bytes(keys, k.size(3), v.size(3), node.op(0).has_attr("softcap")));
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return interval::make_attention(node); }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.memory/1\n"
    "license=Apache-2.0\n",
    Interval)
