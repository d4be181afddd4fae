// The ops provider "aten": every op but attention by LibTorch's operators, on the CPU and on CUDA.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "workspace.hpp"

namespace {

using namespace chassis;
using aten::Operators;

void check_function(const NodeView& node) {
  const auto function = node.op(0).attr_string("function");
  if (function != "silu" && function != "gelu" && function != "gelu_tanh" && function != "relu")
    refuse("does not compute activation '", function, "'");
}

void check_dropout(const NodeView& node) {
  const uint32_t dtype = node.input(0).dtype();
  if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("draws the bits of dropout on the CPU only");
  if (dtype == CHASSIS_DTYPE_F16) refuse("dropout is in f32, f64 and bf16, not ", dtype_name(dtype));
  if (node.op(0).attr_float("p") > 1 - 0x1p-32)
    refuse("dropout with p = ", node.op(0).attr_float("p"), " keeps nothing");
}

// Wide products gain nothing from being joined, and the copies of their weights cost more.
void check_linear_group(const NodeView& node) {
  bool is_group = node.num_inputs() == 1 && node.num_params() == node.num_ops() && node.num_outputs() == node.num_ops();
  for (int i = 0; is_group && i < node.num_ops(); ++i) is_group = node.raw().ops[i]->inputs[0] == node.raw().inputs[0];
  if (!is_group) refuse("joins linears of one input, without a bias, whose outputs are all used");
  int64_t columns = 0;
  for (int i = 0; i < node.num_params(); ++i) columns += node.param(i).size(0);
  if (4 * columns > node.param(0).size(1))
    refuse("computes ", columns, " columns of ", node.param(0).size(1),
           " features by separate products; it joins a quarter or less");
}

// The sum after a wide product may belong to a norm that follows.
void check_linear_add(const NodeView& node) {
  if (node.num_inputs() != 2 || node.num_outputs() != 1 || node.num_params() != 1)
    refuse("adds a product without a bias to another value, if it is used nowhere else");
  if (4 * node.param(0).size(1) > node.param(0).size(0))
    refuse("adds a product of ", node.param(0).size(1), " features to ", node.param(0).size(0),
           " columns in a second pass; in place if it has a quarter or less");
}

struct Entry {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const Operators& aten, const NodeView& node);
  uint32_t keeps_inputs = 0;       // bits of inputs that backward reads
  uint32_t overwrites_inputs = 0;  // bits of inputs whose memory the output may take
  double passes;                   // for cost_ns
  std::array<std::string_view, 6> attrs = {};
  void (*check)(const NodeView& node) = nullptr;  // refuses what the attrs and dtypes do not
  void (*workspace)(const Host& host, const NodeView& node, Infer& out) = nullptr;
  bool keeps_for_weight = false;   // backward reads the inputs only for the gradient of a parameter
  bool keeps_output = false;       // backward reads output 0
  bool makes_outputs = false;      // forward allocates its outputs itself
  int saved_rows = 0;              // tensors with a value for each row that training saves
  bool is_fused_backward = false;  // gradients are computed in forward
  bool writes_inner = false;       // values between the ops are outputs too
};

// layer_norm has no out variant that takes undefined parameters, so it makes its own outputs.
constexpr Entry kEntries[] = {
    {.pattern = "linear+softcap+cross_entropy",
     .make = aten::make_linear_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 11,
     .attrs = {"cap", "ignore_index"},
     .workspace = aten::head_workspace,
     .is_fused_backward = true},
    {.pattern = "linear+cross_entropy",
     .make = aten::make_linear_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 8,
     .attrs = {"ignore_index"},
     .workspace = aten::head_workspace,
     .is_fused_backward = true},
    {.pattern = "linear+softcap+partial_cross_entropy",
     .make = aten::make_linear_partial_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 11,
     .attrs = {"cap", "ignore_index", "first", "count"},
     .workspace = aten::head_workspace,
     .keeps_output = true},
    {.pattern = "linear+partial_cross_entropy",
     .make = aten::make_linear_partial_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 8,
     .attrs = {"ignore_index", "first", "count"},
     .workspace = aten::head_workspace,
     .keeps_output = true},
    {.pattern = "linear+linear+linear",
     .make = aten::make_linear_group,
     .keeps_inputs = 0b1,
     .passes = 1,
     .check = check_linear_group,
     .workspace = aten::linear_group_workspace,
     .keeps_for_weight = true,
     .writes_inner = true},
    {.pattern = "linear+linear",
     .make = aten::make_linear_group,
     .keeps_inputs = 0b1,
     .passes = 1,
     .check = check_linear_group,
     .workspace = aten::linear_group_workspace,
     .keeps_for_weight = true,
     .writes_inner = true},
    {.pattern = "scale+linear+add",
     .make = aten::make_linear_add,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b10,
     .passes = 1,
     .attrs = {"factor"},
     .check = check_linear_add,
     .workspace = aten::linear_add_workspace,
     .keeps_for_weight = true},
    {.pattern = "linear+add",
     .make = aten::make_linear_add,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b10,
     .passes = 1,
     .check = check_linear_add,
     .workspace = aten::linear_add_workspace,
     .keeps_for_weight = true},
    {.pattern = "embedding",
     .make = aten::make_embedding,
     .keeps_inputs = 0b1,
     .passes = 3,
     .attrs = {"first"},
     .workspace = aten::embedding_workspace},
    {.pattern = "linear",
     .make = aten::make_linear,
     .keeps_inputs = 0b1,
     .passes = 1,
     .workspace = aten::linear_workspace,
     .keeps_for_weight = true},
    {.pattern = "rms_norm",
     .make = aten::make_rms_norm,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b1,
     .passes = 6,
     .attrs = {"eps", "offset"},
     .workspace = aten::rms_norm_workspace,
     .saved_rows = 1},
    {.pattern = "layer_norm",
     .make = aten::make_layer_norm,
     .keeps_inputs = 0b1,
     .passes = 4,
     .attrs = {"eps"},
     .workspace = aten::layer_norm_workspace,
     .makes_outputs = true,
     .saved_rows = 2},
    {.pattern = "rope",
     .make = aten::make_rope,
     .keeps_inputs = 0b10,
     .passes = 7,
     .attrs = {"inv_freq", "factor", "interleaved", "rotary_dim", "long_inv_freq", "long_from"},
     .workspace = aten::rope_workspace},
    {.pattern = "activation",
     .make = aten::make_activation,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b1,
     .passes = 2,
     .attrs = {"function"},
     .check = check_function},
    {.pattern = "gated_activation",
     .make = aten::make_gated_activation,
     .keeps_inputs = 0b11,
     .overwrites_inputs = 0b1,
     .passes = 5,
     .attrs = {"function"},
     .check = check_function},
    {.pattern = "add", .make = aten::make_add, .overwrites_inputs = 0b11, .passes = 3},
    {.pattern = "mul", .make = aten::make_mul, .keeps_inputs = 0b11, .overwrites_inputs = 0b11, .passes = 3},
    {.pattern = "scale", .make = aten::make_scale, .overwrites_inputs = 0b1, .passes = 2, .attrs = {"factor"}},
    {.pattern = "channel_scale",
     .make = aten::make_channel_scale,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b1,
     .passes = 3,
     .workspace = aten::channel_scale_workspace,
     .keeps_for_weight = true},
    {.pattern = "dropout",
     .make = aten::make_dropout,
     .overwrites_inputs = 0b1,
     .passes = 4,
     .attrs = {"p", "first", "query_part"},
     .check = check_dropout},
    {.pattern = "softcap",
     .make = aten::make_softcap,
     .keeps_inputs = 0b1,
     .overwrites_inputs = 0b1,
     .passes = 5,
     .attrs = {"cap"},
     .workspace = aten::softcap_workspace},
    {.pattern = "reshape", .make = aten::make_reshape, .overwrites_inputs = 0b1, .passes = 2},
    {.pattern = "cross_entropy",
     .make = aten::make_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 6,
     .attrs = {"ignore_index"},
     .workspace = aten::cross_entropy_workspace},
    {.pattern = "partial_cross_entropy",
     .make = aten::make_partial_cross_entropy,
     .keeps_inputs = 0b11,
     .passes = 6,
     .attrs = {"ignore_index", "first", "count"},
     .workspace = aten::partial_cross_entropy_workspace,
     .keeps_output = true},
    {.pattern = "total_cross_entropy",
     .make = aten::make_total_cross_entropy,
     .keeps_inputs = 0b100,
     .passes = 2,
     .attrs = {"ignore_index"}},
    {.pattern = "score", .make = aten::make_score, .keeps_inputs = 0b11, .passes = 2},
};

const Entry& entry_of(const NodeView& node) {
  const std::string pattern = node.pattern();
  for (const Entry& entry : kEntries)
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
  static constexpr auto kPatterns = patterns_of(kEntries);
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
      const bool keeps = !entry.keeps_for_weight || aten::any_param_needs_grad(node);
      out.raw().keeps_inputs = keeps ? entry.keeps_inputs : 0;
      out.raw().keeps_outputs = entry.keeps_output ? 0b1 : 0;
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
               "license=Apache-2.0\n",
               Aten)
