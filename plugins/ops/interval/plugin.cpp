// The attention provider "interval": all masks, grouped heads, Dqk ≠ Dv, on the CPU in fp32 and bf16.
#include "chassis/plugin.hpp"
#include "attention.hpp"
#include "attention_bf16.hpp"
#include "bf16_blocks.hpp"
#include "chassis/cost.hpp"
#include "chassis/task.hpp"
#include "intervals.hpp"

namespace {

using namespace chassis;

class Interval final : public Ops {
 public:
  static constexpr std::string_view kDoc =
      "attention by tiles that skip hidden keys; all masks; on the CPU in fp32, and in bf16 by AMX or AVX512-BF16 "
      "if the processor has one";
  static constexpr std::string_view kPatterns[] = {"attention"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than(
        {"scale", "causal", "window", "chunk", "document", "prefix", "softcap", "query_part", "key_part"});
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    const uint32_t dtype = node.input(0).dtype();
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16)
      refuse("computes in f32 and bf16, not ", dtype_name(dtype));
    const double rate = flops_per_ns(node);
    const OperandView q = node.input(0), k = node.input(1);
    const double pairs = static_cast<double>(interval::visible_pairs(interval::Mask(node.op(0)), q.size(1), k.size(1)));
    return attention_cost_ns(host(), node, pairs, k.size(0) * k.size(2), rate);
  }

  void infer(const NodeView& node, Infer& out) override {
    const OperandView q = node.input(0), k = node.input(1), v = node.input(2);
    const auto threads = static_cast<uint64_t>(num_threads(host()));
    const int64_t keys = k.size(1);
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | (node.op(0).has_attr("key_part") ? CHASSIS_KERNEL_LOG_SUM : 0u));
    out.keeps_input(0).keeps_input(1).keeps_input(2).keeps_input(3).keeps_input(4);
    out.keeps_output(0).saves(CHASSIS_DTYPE_F32, {q.size(0), q.size(2), q.size(1)});
    if (uses_blocks(node)) {
      out.workspace(interval::bf16_forward_bytes(k.size(0), keys, k.size(2), k.size(3), v.size(3)) +
                        threads * interval::bf16_forward_thread_bytes(keys, k.size(3), v.size(3)),
                    threads * interval::bf16_backward_thread_bytes(keys, k.size(3), v.size(3)));
      return;
    }
    out.workspace(interval::forward_bytes(node) + threads * interval::forward_thread_bytes(node),
                  threads * interval::backward_thread_bytes(node));
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return uses_blocks(node) ? interval::make_bf16_attention(node) : interval::make_attention(node);
  }

 private:
  // The rates were measured with AMX, AVX512-BF16 and AVX-512.
  static double flops_per_ns(const NodeView& node) {
    if (!uses_blocks(node)) return 60;
    return interval::bf16_unit() == interval::Bf16Unit::kTiles ? 250 : 100;
  }
  static bool uses_blocks(const NodeView& node) {
    return node.input(0).dtype() == CHASSIS_DTYPE_BF16 && interval::bf16_blocks() != nullptr;
  }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.memory/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Interval)
