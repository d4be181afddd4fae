// The ops provider "aten": every op but attention by LibTorch's operators, on the CPU and on CUDA.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;
using aten::Operators;

struct Entry {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const Operators& aten, const NodeView& node);
  uint32_t keeps_inputs;       // bits of inputs that backward reads
  uint32_t overwrites_inputs;  // bits of inputs whose memory the output may take
  double passes;               // for cost_ns
  std::initializer_list<std::string_view> attrs;
};

// layer_norm has no out variant that takes undefined parameters, so it makes its own outputs.
const Entry kEntries[] = {
    {"linear+softcap+cross_entropy", aten::make_linear_cross_entropy, 0b11, 0, 11, {"cap", "ignore_index"}},
    {"linear+cross_entropy", aten::make_linear_cross_entropy, 0b11, 0, 8, {"ignore_index"}},
    {"linear+softcap+partial_cross_entropy",
     aten::make_linear_partial_cross_entropy,
     0b11,
     0,
     11,
     {"cap", "ignore_index", "first", "count"}},
    {"linear+partial_cross_entropy",
     aten::make_linear_partial_cross_entropy,
     0b11,
     0,
     8,
     {"ignore_index", "first", "count"}},
    {"linear+linear+linear", aten::make_linear_group, 0b1, 0, 1, {}},
    {"linear+linear", aten::make_linear_group, 0b1, 0, 1, {}},
    {"scale+linear+add", aten::make_linear_add, 0b1, 0b10, 1, {"factor"}},
    {"linear+add", aten::make_linear_add, 0b1, 0b10, 1, {}},
    {"embedding", aten::make_embedding, 0b1, 0, 3, {"first"}},
    {"linear", aten::make_linear, 0b1, 0, 1, {}},
    {"rms_norm", aten::make_rms_norm, 0b1, 0b1, 6, {"eps", "offset"}},
    {"layer_norm", aten::make_layer_norm, 0b1, 0, 4, {"eps"}},
    {"rope",
     aten::make_rope,
     0b10,
     0,
     7,
     {"inv_freq", "factor", "interleaved", "rotary_dim", "long_inv_freq", "long_from"}},
    {"activation", aten::make_activation, 0b1, 0b1, 2, {"function"}},
    {"gated_activation", aten::make_gated_activation, 0b11, 0b1, 5, {"function"}},
    {"add", aten::make_add, 0, 0b11, 3, {}},
    {"mul", aten::make_mul, 0b11, 0b11, 3, {}},
    {"scale", aten::make_scale, 0, 0b1, 2, {"factor"}},
    {"channel_scale", aten::make_channel_scale, 0b1, 0b1, 3, {}},
    {"dropout", aten::make_dropout, 0, 0b1, 4, {"p", "first", "query_part"}},
    {"softcap", aten::make_softcap, 0b1, 0b1, 5, {"cap"}},
    {"reshape", aten::make_reshape, 0, 0b1, 2, {}},
    {"cross_entropy", aten::make_cross_entropy, 0b11, 0, 6, {"ignore_index"}},
    {"partial_cross_entropy", aten::make_partial_cross_entropy, 0b11, 0, 6, {"ignore_index", "first", "count"}},
    {"total_cross_entropy", aten::make_total_cross_entropy, 0b100, 0, 2, {"ignore_index"}},
    {"score", aten::make_score, 0b11, 0, 2, {}},
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
  static constexpr int kMinHostMinor = 7;  // the first host that knows partial_cross_entropy
  static constexpr std::string_view kDoc = "every op but attention, by LibTorch's operators; CPU and CUDA";
  static constexpr std::string_view kPatterns[] = {"linear+softcap+cross_entropy",
                                                   "linear+cross_entropy",
                                                   "linear+softcap+partial_cross_entropy",
                                                   "linear+partial_cross_entropy",
                                                   "linear+linear+linear",
                                                   "linear+linear",
                                                   "scale+linear+add",
                                                   "linear+add",
                                                   "embedding",
                                                   "linear",
                                                   "rms_norm",
                                                   "layer_norm",
                                                   "rope",
                                                   "activation",
                                                   "gated_activation",
                                                   "add",
                                                   "mul",
                                                   "scale",
                                                   "softcap",
                                                   "reshape",
                                                   "cross_entropy",
                                                   "partial_cross_entropy",
                                                   "total_cross_entropy",
                                                   "score",
                                                   "dropout",
                                                   "channel_scale"};
  explicit Aten(const Host& host) : Ops(host), aten_(host) {}

  double claim(const NodeView& node) override {
    const Entry& entry = entry_of(node);
    for (int i = 0; i < node.num_ops(); ++i) node.op(i).refuse_attrs_other_than(entry.attrs);
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i) && !is_float(node.param(i).dtype()))
        refuse("parameter ", i, " is ", dtype_name(node.param(i).dtype()), ", expected a floating type");
    if (entry.pattern.ends_with("activation")) {
      const auto function = node.op(0).attr_string("function");
      if (function != "silu" && function != "gelu" && function != "gelu_tanh" && function != "relu")
        refuse("does not compute activation '", function, "'");
    }
    if (entry.pattern == "dropout") check_dropout(node);
    if (entry.make == aten::make_linear_group) check_linear_group(node);
    if (entry.make == aten::make_linear_add) check_linear_add(node);
    return cost_ns(host(), node, entry.passes);
  }

  void infer(const NodeView& node, Infer& out) override {
    const Entry& entry = entry_of(node);
    const bool norm = entry.pattern == "rms_norm" || entry.pattern == "layer_norm";
    const bool makes_outputs = entry.pattern == "layer_norm";
    out.flags(CHASSIS_KERNEL_ADDS_GRAD_INPUTS | (makes_outputs ? 0 : CHASSIS_KERNEL_HOST_OUTPUTS));
    out.raw().overwrites_inputs = entry.overwrites_inputs;
    if (node.training()) {
      // A product reads its input only for the gradient of its weight.
      const bool is_product = entry.pattern.find("linear") != entry.pattern.npos && !entry.pattern.ends_with("entropy");
      const bool reads_inputs = !(is_product || entry.pattern == "channel_scale") || any_param_needs_grad(node);
      out.raw().keeps_inputs = reads_inputs ? entry.keeps_inputs : 0;
      if (entry.pattern.ends_with("partial_cross_entropy")) out.raw().keeps_outputs = 0b1;
      if (norm) {
        auto shape = aten::shape_of(node.input(0));
        shape.back() = 1;
        for (int i = 0; i < (makes_outputs ? 2 : 1); ++i) out.saves(aten::wide(node.input(0).dtype()), shape);
      }
    }
    workspace(node, entry, out);
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return entry_of(node).make(aten_, node); }

 private:
  static bool any_param_needs_grad(const NodeView& node) {
    for (int i = 0; i < node.num_params(); ++i)
      if (node.has_param(i) && node.param(i).needs_grad()) return true;
    return false;
  }

  // Wide products gain nothing from being joined, and the copies of their weights cost more.
  static void check_linear_group(const NodeView& node) {
    bool is_group =
        node.num_inputs() == 1 && node.num_params() == node.num_ops() && node.num_outputs() == node.num_ops();
    for (int i = 0; is_group && i < node.num_ops(); ++i)
      is_group = node.raw().ops[i]->inputs[0] == node.raw().inputs[0];
    if (!is_group)
      refuse("joins linears of one input, without a bias, whose outputs are all used");
    int64_t columns = 0;
    for (int i = 0; i < node.num_params(); ++i) columns += node.param(i).size(0);
    if (4 * columns > node.param(0).size(1))
      refuse("computes ", columns, " columns of ", node.param(0).size(1),
             " features by separate products; it joins a quarter or less");
  }

  // The sum after a wide product may belong to a norm that follows.
  static void check_linear_add(const NodeView& node) {
    if (node.num_inputs() != 2 || node.num_outputs() != 1 || node.num_params() != 1)
      refuse("adds a product without a bias to another value, if it is used nowhere else");
    if (4 * node.param(0).size(1) > node.param(0).size(0))
      refuse("adds a product of ", node.param(0).size(1), " features to ", node.param(0).size(0),
             " columns in a second pass; in place if it has a quarter or less");
  }

  static void check_dropout(const NodeView& node) {
    const uint32_t dtype = node.input(0).dtype();
    if (node.device_type() != CHASSIS_DEVICE_CPU) refuse("draws the bits of dropout on the CPU only");
    if (dtype == CHASSIS_DTYPE_F16) refuse("dropout is in f32, f64 and bf16, not ", dtype_name(dtype));
    if (node.op(0).attr_float("p") > 1 - 0x1p-32)
      refuse("dropout with p = ", node.op(0).attr_float("p"), " keeps nothing");
  }

  // Declares the bytes of the formulas' temporaries, without outputs and gradients.
  void workspace(const NodeView& node, const Entry& entry, Infer& out) const {
    const uint32_t dtype = node.has_param(0) ? node.param(0).dtype() : node.input(0).dtype();
    const uint64_t input = static_cast<uint64_t>(node.input(0).num_elements());
    const uint64_t wide_bytes = dtype_bytes(aten::wide(dtype)), narrow = dtype == aten::wide(dtype) ? 0 : 1;
    const uint64_t slab = std::min<uint64_t>(input, aten::kSlabBytes / 4);
    const bool is_whole_head = entry.pattern.ends_with("+cross_entropy");
    if (is_whole_head || entry.pattern.ends_with("+partial_cross_entropy")) {
      if (is_whole_head) out.flags(CHASSIS_KERNEL_FORWARD_BACKWARD);
      const int64_t rows = node.input(1).num_elements(), vocab = node.param(0).size(0);
      const uint64_t chunk = aten::loss_chunk_bytes(rows, vocab, dtype);
      const auto logits = static_cast<uint64_t>(aten::loss_chunk_rows(rows, vocab) * vocab) * wide_bytes;
      // Exponentials of the logits, and the derivatives of the cap.
      out.workspace(chunk + (is_whole_head ? 0 : logits), chunk + (node.num_ops() == 3 ? logits : 0));
    } else if (entry.pattern == "partial_cross_entropy") {
      out.workspace((1 + narrow) * input * wide_bytes, (1 + narrow) * input * wide_bytes);
    } else if (entry.pattern == "channel_scale") {
      out.workspace(0, node.param(0).needs_grad() ? slab * wide_bytes : 0);
    } else if (entry.pattern == "softcap") {
      out.workspace(input * wide_bytes, input * wide_bytes);
    } else if (entry.pattern == "cross_entropy") {
      out.workspace(input * wide_bytes, narrow * input * wide_bytes);
    } else if (entry.pattern == "embedding") {
      const int64_t vocab = node.param(0).size(0), columns = node.param(0).size(1);
      const uint64_t gradient = narrow * static_cast<uint64_t>(node.output(0).num_elements());
      out.workspace(0,
                    (gradient + static_cast<uint64_t>(vocab * aten::embedding_columns(vocab, columns))) * wide_bytes);
    } else if (entry.pattern == "rms_norm") {
      const uint64_t unit = node.op(0).has_attr("offset") ? 1 : 0;
      out.workspace((narrow + unit) * input * wide_bytes, (2 + 3 * narrow) * slab * wide_bytes);
    } else if (entry.pattern == "layer_norm") {
      out.workspace(2 * narrow * input * wide_bytes, 3 * narrow * input * wide_bytes);
    } else if (entry.pattern == "rope") {
      const uint64_t tokens =
          input / static_cast<uint64_t>(std::max<int64_t>(1, node.input(0).size(2) * node.input(0).size(3)));
      const uint64_t angles = 3 * tokens * node.op(0).attr_floats("inv_freq").size();
      out.workspace((angles + 2 * narrow * slab) * wide_bytes, (angles + 2 * narrow * slab) * wide_bytes);
    } else if (entry.make == aten::make_linear_group || entry.make == aten::make_linear_add) {
      branch_workspace(node, entry, out);
    } else if (entry.pattern == "linear" && !node.param(0).needs_grad()) {
      return;  // no gradient of a weight
    } else if (entry.pattern == "linear" && aten::multiplies_into_wide(node.device_type(), dtype, aten::wide(dtype))) {
      // The product, if it is added to an existing gradient.
      out.workspace(0, static_cast<uint64_t>(node.param(0).num_elements()) * wide_bytes);
    } else if (entry.pattern == "linear" && narrow) {
      const int64_t out_dim = node.param(0).size(0), in_dim = node.param(0).size(1);
      const uint64_t output = static_cast<uint64_t>(node.output(0).num_elements());
      const bool by_host = dtype == CHASSIS_DTYPE_BF16 && node.device_type() == CHASSIS_DEVICE_CPU;
      out.workspace(0, by_host ? gemm_scratch_bytes(host(), dtype, CHASSIS_DTYPE_F32, out_dim, in_dim,
                                                    node.input(0).num_elements() / in_dim)
                               : (input + output) * wide_bytes);
    }
  }

  void branch_workspace(const NodeView& node, const Entry& entry, Infer& out) const {
    const bool is_group = entry.make == aten::make_linear_group;
    const uint32_t dtype = node.input(0).dtype();
    const int64_t features = node.param(0).size(1), rows = node.input(0).num_elements() / features;
    int64_t columns = 0;
    for (int i = 0; i < node.num_params(); ++i) columns += node.param(i).size(0);
    const uint64_t bytes = dtype_bytes(dtype), weights = static_cast<uint64_t>(columns * features);
    // Joined outputs and stacked weights; for the sum, scaled rows.
    const uint64_t copies = is_group ? (static_cast<uint64_t>(rows * columns) + weights) * bytes
                                     : static_cast<uint64_t>(rows * features) * bytes;
    const bool by_host = dtype == CHASSIS_DTYPE_BF16 && node.device_type() == CHASSIS_DEVICE_CPU;
    const uint64_t widened =
        by_host ? gemm_scratch_bytes(host(), dtype, CHASSIS_DTYPE_F32, columns, features, rows)
                : static_cast<uint64_t>(dtype == aten::wide(dtype) ? 0 : rows * (features + columns)) * sizeof(float);
    const uint64_t product = is_group ? weights * dtype_bytes(aten::wide(dtype)) : 0;
    out.workspace(is_group ? copies : 0, any_param_needs_grad(node) ? copies + product + widened : copies);
  }

  Operators aten_;
};

}  // namespace

CHASSIS_PLUGIN(ATEN_OPERATORS(ATEN_LINE)
               "requires=chassis.dispatch/1\nrequires=chassis.tensor/1\nrequires=chassis.task/1\n"
               "requires=chassis.gemm/1\n"
               "license=Apache-2.0\n",
               Aten)
