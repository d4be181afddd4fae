// The ops provider "reference": every op but attention by naive loops on the CPU; tests compare others with it.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "values.hpp"

namespace {

using namespace chassis;

struct Entry {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const NodeView& node);
  uint32_t keeps_inputs;  // bits of inputs that backward reads
  std::array<std::string_view, 6> attrs;
};

constexpr Entry kEntries[] = {
    {"embedding", reference::make_embedding, 1, {"first"}},
    {"linear", reference::make_linear, 1, {}},
    {"rms_norm", reference::make_rms_norm, 1, {"eps", "offset"}},
    {"layer_norm", reference::make_layer_norm, 1, {"eps"}},
    {"rope",
     reference::make_rope,
     2,
     {"inv_freq", "factor", "interleaved", "rotary_dim", "long_inv_freq", "long_from"}},
    {"activation", reference::make_activation, 1, {"function"}},
    {"gated_activation", reference::make_gated_activation, 3, {"function"}},
    {"add", reference::make_add, 0, {}},
    {"mul", reference::make_mul, 3, {}},
    {"scale", reference::make_scale, 0, {"factor"}},
    {"channel_scale", reference::make_channel_scale, 1, {}},
    {"dropout", reference::make_dropout, 0, {"p", "first", "query_part"}},
    {"softcap", reference::make_softcap, 1, {"cap"}},
    {"reshape", reference::make_reshape, 0, {}},
    {"cross_entropy", reference::make_cross_entropy, 3, {"ignore_index"}},
    {"partial_cross_entropy", reference::make_partial_cross_entropy, 3, {"ignore_index", "first", "count"}},
    {"total_cross_entropy", reference::make_total_cross_entropy, 4, {"ignore_index"}},
    {"score", reference::make_score, 3, {}},
};

const Entry& entry_of(const NodeView& node) {
  for (const Entry& entry : kEntries)
    if (entry.pattern == node.op(0).id()) return entry;
  refuse("does not compute op '", node.op(0).id(), "'");
}

class Reference : public Ops {
 public:
  static constexpr std::string_view kDoc = "naive and readable, in double precision on the CPU; the oracle of tests";
  static constexpr auto kPatterns = patterns_of(kEntries);
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
    for (uint32_t i = 0; i < 3; ++i)
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

CHASSIS_PLUGIN("requires=chassis.tensor/1\nrequires=chassis.task/1\noracle=1\nlicense=Apache-2.0\n", Reference)
