// The ops provider "grouped": mixtures of experts on the CPU, in fp32 and bf16.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;

struct Row {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const NodeView& node);
  uint32_t keeps_inputs;  // bits of inputs that backward always reads
  double passes;          // for cost_ns
  std::array<std::string_view, 3> attrs = {};
  int weights_at = 2;  // the input that has the weights of rows, if the op weighs them
};

constexpr std::string_view kCombinedLinear = "grouped_linear+combine",
                           kGatedLinear = "gated_activation+grouped_linear+combine";

constexpr Row kRows[] = {
    {"top_experts", grouped::make_top_experts, 0, 2, {"groups", "top_groups"}},
    {"expert_weights", grouped::make_expert_weights, 0b11, 2, {"score", "normalize", "factor"}},
    {"dispatch", grouped::make_dispatch, 0b110, 2},
    {"grouped_linear", grouped::make_linear, 0b10, 1},
    {"combine", grouped::make_combine, 0b110, 2},
    {kCombinedLinear, grouped::make_combined_linear, 0b110, 1},
    {kGatedLinear, grouped::make_combined_linear, 0b1100, 1, {"function"}, 3},
    {"gate_tokens", grouped::make_gate_tokens, 0b11, 2},
};

const Row& row_of(const NodeView& node) { return *std::ranges::find(kRows, node.pattern(), &Row::pattern); }

class Grouped final : public Ops {
 public:
  static constexpr std::string_view kDoc =
      "mixtures of experts: their choice, rows and products; fp32 and bf16 on the CPU";
  static constexpr std::string_view kPatterns[] = {"top_experts", "expert_weights", "dispatch",      "grouped_linear",
                                                   "combine",     "gate_tokens",    kCombinedLinear, kGatedLinear};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    const Row& row = row_of(node);
    for (int i = 0; i < node.num_ops(); ++i) node.op(i).refuse_attrs_other_than(row.attrs);
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("runs only on the CPU");
    for (int i = 0; i < node.num_inputs(); ++i) check_dtype(node.input(i).dtype());
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i) && node.param(i).dtype() != node.input(0).dtype())
        refuse("parameter ", i, " is ", dtype_name(node.param(i).dtype()), ", the rows are ",
               dtype_name(node.input(0).dtype()));
    if (row.pattern == "expert_weights") {
      const auto score = node.op(0).attr_string("score");
      if (score != "softmax" && score != "chosen_softmax" && score != "sigmoid")
        refuse("does not compute score '", score, "'");
    }
    if (row.pattern == kGatedLinear) {
      const auto function = node.op(0).attr_string("function");
      if (function != "silu" && function != "gelu_tanh") refuse("does not compute function '", function, "'");
    }
    return cost_ns(host(), node, row.passes);
  }

  void infer(const NodeView& node, Infer& out) override {
    const Row& row = row_of(node);
    const bool is_gated = row.pattern == kGatedLinear;
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | (is_gated ? 0u : uint32_t{CHASSIS_KERNEL_ADDS_GRAD_INPUTS}));
    if (node.training()) {
      for (uint32_t i = 0; i < 4; ++i)
        if (row.keeps_inputs >> i & 1) out.keeps_input(i);
      if (is_gated || needs_rows(row, node)) out.keeps_input(0);
      if (is_gated) out.keeps_input(1);
    }
    if (row.pattern == "grouped_linear") products(node, out);
    if (row.pattern == kCombinedLinear || is_gated) combined_products(node, out);
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return row_of(node).make(node); }

 private:
  // The gradients of an expert's weight, and of the weight of a row, are made from the rows.
  static bool needs_rows(const Row& row, const NodeView& node) {
    const bool weighs = row.pattern == "dispatch" || row.pattern.ends_with("combine");
    const int at = row.weights_at;
    return (node.num_params() > 0 && node.param(0).needs_grad()) ||
           (weighs && node.has_input(at) && node.input(at).needs_grad());
  }

  static void check_dtype(uint32_t dtype) {
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16 && dtype != CHASSIS_DTYPE_I32)
      refuse("computes in f32 and bf16, not ", dtype_name(dtype));
  }

  // Scratch of products c[m, n] = a[m, k] · b[k, n] of some rows in all. Products of several experts run side by side,
  // each with a copy of its b.
  uint64_t scratch_bytes(const NodeView& node, uint32_t c_dtype, int64_t m, int64_t n, int64_t k) const {
    const uint64_t bytes = gemm_scratch_bytes(host(), node.input(0).dtype(), c_dtype, m, n, k);
    const auto others = static_cast<uint64_t>(std::max(1, num_threads(host())) - 1);
    return bytes == 0 ? 0 : bytes + others * static_cast<uint64_t>(k * n) * sizeof(float);
  }

  void products(const NodeView& node, Infer& out) const {
    const uint32_t dtype = node.input(0).dtype();
    const int64_t rows = node.input(1).num_elements(), width = node.param(0).size(1), in = node.param(0).size(2);
    const auto scratch = [&](uint32_t c_dtype, int64_t m, int64_t n, int64_t k) {
      return scratch_bytes(node, c_dtype, m, n, k);
    };
    out.workspace(scratch(dtype, rows, width, in),
                  std::max(scratch(dtype, rows, in, width), scratch(CHASSIS_DTYPE_F32, width, in, rows)));
  }

  // The products of a span of rows, and their activations; with bf16 the sums of all tokens, too.
  void combined_products(const NodeView& node, Infer& out) const {
    const uint32_t dtype = node.input(0).dtype();
    const int64_t width = node.param(0).size(1), in = node.param(0).size(2);
    const bool is_gated = node.pattern() == kGatedLinear;
    const int64_t rows = std::min(node.input(is_gated ? 2 : 1).num_elements(), grouped::rows_at_once(node.param(0)));
    const auto bytes = [](int64_t count, uint32_t of) { return static_cast<uint64_t>(count) * dtype_bytes(of); };
    const uint64_t sums = dtype == CHASSIS_DTYPE_F32 ? 0 : bytes(node.output(0).num_elements(), CHASSIS_DTYPE_F32);
    const uint64_t dys = bytes(rows * width, dtype), activations = is_gated ? bytes(rows * in, dtype) : 0;
    const auto scratch = [&](int64_t m, int64_t n, int64_t k) {
      return scratch_bytes(node, CHASSIS_DTYPE_F32, m, n, k);
    };
    const uint64_t products = bytes(rows * width, CHASSIS_DTYPE_F32), gradients = bytes(rows * in, CHASSIS_DTYPE_F32);
    out.workspace(sums + products + activations + scratch(rows, width, in),
                  dys + activations + std::max(gradients + scratch(rows, in, width), scratch(width, in, rows)));
  }
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.tensor/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.gemm/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Grouped)
