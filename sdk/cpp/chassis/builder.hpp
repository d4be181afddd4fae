// Records a model, op by op: q = b.linear(b.rms_norm(x, "input_layernorm.weight", eps), "q_proj", {heads, head_dim}).
// Sizes are given once, to dim(); everything else names dims. chassis/op.h describes the ops.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/attrs.hpp"
#include "chassis/host.hpp"
#include "chassis/kind/model.h"
#include "chassis/tensor.h"

CHASSIS_SDK_BEGIN

struct Dim {
  chassis_dim_t id;
};
inline constexpr Dim kBatch{CHASSIS_DIM_BATCH};
inline constexpr Dim kTime{CHASSIS_DIM_TIME};

using Dims = std::vector<Dim>;

// The output of an op, within the block being recorded. A default-constructed value is absent.
struct Value {
  chassis_value_t id = CHASSIS_ABSENT;
  Dims dims;
  explicit operator bool() const noexcept { return id != CHASSIS_ABSENT; }
};

struct Slot {
  chassis_slot_t id;
};

struct Block {
  chassis_block_t id;
};

// A parameter; each axis is the product of its dims.
struct SlotDesc {
  std::string name;
  std::vector<Dims> axes;
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  uint32_t init = CHASSIS_INIT_NORMAL;
  double init_std = 0.02;
  std::string tied_to = {};  // full name of the parameter that this slot shares
  double lr_scale = 1;       // the learning rate is multiplied by it
};

struct LinearOptions {
  bool bias = false;
  uint32_t role = CHASSIS_ROLE_WEIGHT;
  std::string tied_to = {};
};

struct Rope {
  std::vector<double> inv_freq;  // rotary_dim/2
  double factor = 1.0;           // on cos and sin
  bool interleaved = false;      // pairs (0,1), (2,3), … instead of the two halves
  int64_t rotary_dim = 0;        // leading dims of a head that are rotated; 0: all
  // Replaces inv_freq in calls whose largest position is at least long_from; empty: never.
  std::vector<double> long_inv_freq = {};
  int64_t long_from = 0;
};

// Which keys a query sees; see chassis/op.h. Zero or absent: no limit. With document_ids, chunks are those of each
// document.
struct Mask {
  bool causal = false;
  int64_t window = 0;
  int64_t chunk = 0;
  Value document_ids = {};
  Value prefix_lens = {};
};

// The loss that balances the experts of a router by default; `model.router_aux_weight` replaces the weight. For the
// forms see load_balance in chassis/op.h. "layers": one loss of all layers together.
struct Balance {
  double aux_weight = 0;
  std::string_view form = "layers";  // layers, batch, sequence
};

// The properties of a plugin's own op, "domain/name"; chassis_op_desc_t describes their effect.
struct OwnOp {
  // The dims that it mixes: {} for a pointwise op. Not given: all of them.
  std::optional<Dims> mixed_dims = {};
  uint32_t output_dtype = 0;  // CHASSIS_DTYPE_F32 for a loss, CHASSIS_DTYPE_I32; 0: the precision of the run
};

// All [control]. Errors name the block, op and dims.
class Builder {
 public:
  Builder(const Host& host, const chassis_builder_t& raw) : host_(host), raw_(raw) {}
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // Standard deviation of the weights that linear and embedding declare.
  double init_std = 0.02;

  Dim dim(std::string_view name, int64_t size) {
    Dim out{};
    host_.check(raw_.dim(&raw_, str(name), size, &out.id));
    return out;
  }
  // A dim of which each micro-batch has at most `maximum`.
  Dim bounded_dim(std::string_view name, int64_t maximum) {
    Dim out{};
    host_.check(raw_.bounded_dim(&raw_, str(name), maximum, &out.id));
    return out;
  }

  // Records a block type: b.block("layer", [&] { … });
  template <typename Body>
  Block block(std::string_view name, Body&& body) {
    Block out{};
    host_.check(raw_.begin_block(&raw_, str(name), &out.id));
    body();
    host_.check(raw_.end_block(&raw_));
    return out;
  }

  // The previous block's output of this name: [B, T, behind…].
  Value input(std::string_view name, const Dims& behind) {
    Value out{0, behind_time(behind)};
    const auto ids = ids_of(out.dims);
    host_.check(raw_.input(&raw_, str(name), ids.data(), static_cast<uint32_t>(ids.size()), &out.id));
    return out;
  }
  // A field of the batch; the host refuses one that the data does not have.
  Value field(std::string_view name, uint32_t dtype = CHASSIS_DTYPE_I32, Dims dims = {kBatch, kTime}) {
    Value out{0, std::move(dims)};
    const auto ids = ids_of(out.dims);
    host_.check(raw_.field(&raw_, str(name), dtype, ids.data(), static_cast<uint32_t>(ids.size()), &out.id));
    return out;
  }
  void output(std::string_view name, const Value& value) { host_.check(raw_.output(&raw_, str(name), value.id)); }

  // Blocks in program order; "{i}" in the prefix is the block's index.
  void chain(std::string_view name, std::string_view prefix, const std::vector<Block>& blocks) {
    std::vector<chassis_block_t> ids;
    for (Block block : blocks) ids.push_back(block.id);
    host_.check(raw_.chain(&raw_, str(name), str(prefix), ids.data(), static_cast<uint32_t>(ids.size())));
  }
  void chain(std::string_view name, std::string_view prefix, Block block, int64_t count = 1) {
    chain(name, prefix, std::vector<Block>(static_cast<size_t>(count), block));
  }

  Slot slot(const SlotDesc& desc) {
    std::vector<std::vector<chassis_dim_t>> dims;
    std::vector<chassis_axis_t> axes;
    for (const Dims& axis : desc.axes) dims.push_back(ids_of(axis));
    for (const auto& axis : dims) axes.push_back({axis.data(), axis.size()});
    const chassis_slot_desc_t raw = {sizeof(chassis_slot_desc_t),
                                     static_cast<uint32_t>(axes.size()),
                                     str(desc.name),
                                     axes.data(),
                                     desc.role,
                                     desc.init,
                                     desc.init_std,
                                     str(desc.tied_to),
                                     desc.lr_scale};
    Slot out{};
    host_.check(raw_.slot(&raw_, &raw, &out.id));
    return out;
  }

  // Rows of `weight` [rows, behind…] picked by ids.
  Value embedding(const Value& ids, std::string weight, Dim rows, const Dims& behind) {
    const Slot table =
        slot({std::move(weight), {{rows}, behind}, CHASSIS_ROLE_EMBEDDING, CHASSIS_INIT_NORMAL, init_std});
    return op("embedding", "embedding", {ids}, {table}, {}, behind, behind_time(behind));
  }

  // x · weightᵀ + bias, with the parameters `name`.weight and `name`.bias. Reads all dims of x after [B, T] as one.
  Value linear(const Value& x, const std::string& name, const Dims& out, const LinearOptions& options = {}) {
    const Dims in(x.dims.begin() + 2, x.dims.end());
    std::vector<Slot> params = {
        slot({name + ".weight", {out, in}, options.role, CHASSIS_INIT_NORMAL, init_std, options.tied_to})};
    if (options.bias) params.push_back(slot({name + ".bias", {out}, CHASSIS_ROLE_BIAS, CHASSIS_INIT_ZEROS, 0}));
    return op("linear", name, {x}, params, {}, out, behind_time(out));
  }

  // Normalizes over the last dim of x. With an offset, the gain is offset + weight, and the weight starts at 1 -
  // offset.
  Value rms_norm(const Value& x, std::string weight, double eps, double offset = 0) {
    if (offset != 0 && offset != 1) fail_invalid("rms_norm '", weight, "': offset ", offset, " is neither 0 nor 1");
    const Slot gain = norm_gain(x, weight, offset != 0 ? CHASSIS_INIT_ZEROS : CHASSIS_INIT_ONES);
    Attrs attrs;
    attrs.set("eps", eps);
    if (offset != 0) attrs.set("offset", offset);
    return op("rms_norm", weight, {x}, {gain}, attrs, {}, x.dims);
  }

  // The same without a weight.
  Value plain_rms_norm(const Value& x, double eps) {
    return op("rms_norm", "rms_norm", {x}, {}, Attrs().set("eps", eps).set("plain", true), {}, x.dims);
  }

  // Has the parameters `name`.weight and, unless bias is false, `name`.bias.
  Value layer_norm(const Value& x, const std::string& name, double eps, bool bias = true) {
    std::vector<Slot> params = {norm_gain(x, name + ".weight")};
    if (bias) params.push_back(slot({name + ".bias", {{x.dims.back()}}, CHASSIS_ROLE_BIAS, CHASSIS_INIT_ZEROS, 0}));
    return op("layer_norm", name, {x}, params, Attrs().set("eps", eps), {}, x.dims);
  }

  Value rope(const Value& x, const Value& positions, const Rope& rope) {
    Attrs attrs;
    attrs.set("inv_freq", rope.inv_freq).set("factor", rope.factor).set("interleaved", rope.interleaved);
    if (rope.rotary_dim != 0) attrs.set("rotary_dim", rope.rotary_dim);
    if (!rope.long_inv_freq.empty()) attrs.set("long_inv_freq", rope.long_inv_freq).set("long_from", rope.long_from);
    return op("rope", "rope", {x, positions}, {}, attrs, {}, x.dims);
  }

  // q [B, T, heads, Dqk], k [B, T, kv_heads, Dqk], v [B, T, kv_heads, Dv] → [B, T, heads, Dv]. softcap 0: none.
  Value attention(const Value& q, const Value& k, const Value& v, const Mask& mask, double scale, double softcap = 0) {
    std::vector<Value> inputs = {q, k, v};
    if (mask.document_ids || mask.prefix_lens) inputs.push_back(mask.document_ids);
    if (mask.prefix_lens) inputs.push_back(mask.prefix_lens);
    Attrs attrs;
    attrs.set("scale", scale).set("causal", mask.causal).set("window", mask.window).set("chunk", mask.chunk);
    attrs.set("document", static_cast<bool>(mask.document_ids)).set("prefix", static_cast<bool>(mask.prefix_lens));
    if (softcap != 0) attrs.set("softcap", softcap);
    return op("attention", "attention", inputs, {}, attrs, {}, {q.dims[0], q.dims[1], q.dims[2], v.dims[3]});
  }

  // silu, gelu, gelu_tanh, relu.
  Value activation(const Value& x, std::string_view function) {
    return op("activation", function, {x}, {}, Attrs().set("function", function), {}, x.dims);
  }
  // function(gate) · up.
  Value gated_activation(const Value& gate, const Value& up, std::string_view function) {
    return op("gated_activation", function, {gate, up}, {}, Attrs().set("function", function), {}, gate.dims);
  }
  Value add(const Value& a, const Value& b) { return op("add", "add", {a, b}, {}, {}, {}, a.dims); }
  Value mul(const Value& a, const Value& b) { return op("mul", "mul", {a, b}, {}, {}, {}, a.dims); }
  // x · factor, and cap · tanh(x / cap).
  Value scale(const Value& x, double factor) {
    return op("scale", "scale", {x}, {}, Attrs().set("factor", factor), {}, x.dims);
  }
  Value softcap(const Value& x, double cap) {
    return op("softcap", "softcap", {x}, {}, Attrs().set("cap", cap), {}, x.dims);
  }
  // x, limited to ±limit.
  Value clip(const Value& x, double limit) {
    return op("clip", "clip", {x}, {}, Attrs().set("limit", limit), {}, x.dims);
  }
  // x · (1 + attn_scale · ln(1 + floor((position + 1) / floor_scale))).
  Value position_scale(const Value& x, const Value& positions, double floor_scale, double attn_scale) {
    return op("position_scale", "position_scale", {x, positions}, {},
              Attrs().set("floor_scale", floor_scale).set("attn_scale", attn_scale), {}, x.dims);
  }
  // x · weight along the dims of the slot, which are the last ones of x.
  Value channel_scale(const Value& x, Slot weight) {
    return op("channel_scale", "channel_scale", {x}, {weight}, {}, {}, x.dims);
  }
  // In training, sets elements of x to 0 with probability p, and divides the others by 1 - p.
  Value dropout(const Value& x, double p) { return op("dropout", "dropout", {x}, {}, Attrs().set("p", p), {}, x.dims); }
  // `dims` are all dims, in order.
  Value reshape(const Value& x, const Dims& dims) { return op("reshape", "reshape", {x}, {}, {}, dims, dims); }

  // Elements of the last dim of x, as many as `dim` has, from `first` on.
  Value slice(const Value& x, int64_t first, Dim dim) {
    Dims dims = x.dims;
    dims.back() = dim;
    return op("slice", "slice", {x}, {}, Attrs().set("first", first), {dim}, std::move(dims));
  }
  // [B, T, heads, n] and [B, T, heads or 1, m] → [B, T, heads, dim], where dim has n + m elements.
  Value concat(const Value& a, const Value& b, Dim dim) {
    return op("concat", "concat", {a, b}, {}, {}, {dim}, {a.dims[0], a.dims[1], a.dims[2], dim});
  }

  // The sum over labels other than ignore_index. For auxiliary losses, as a part of "aux_loss": the host itself adds
  // the cross entropy of "logits".
  Value cross_entropy(const Value& logits, const Value& labels, int64_t ignore_index = -100) {
    return op("cross_entropy", "cross_entropy", {logits, labels}, {}, Attrs().set("ignore_index", ignore_index), {},
              {});
  }
  // The log-probability of each label: [B, T], 0 where it is ignore_index.
  Value token_logp(const Value& logits, const Value& labels, int64_t ignore_index = -100) {
    return op("token_logp", "token_logp", {logits, labels}, {}, Attrs().set("ignore_index", ignore_index), {},
              {kBatch, kTime});
  }
  // x · weightᵀ in fp32 at every position: [B, T, labels]. Output it as "scores".
  Value score(const Value& x, std::string weight, Dim labels) {
    const Slot head = slot({weight, {{labels}, {x.dims.back()}}, CHASSIS_ROLE_HEAD, CHASSIS_INIT_NORMAL, init_std});
    return op("score", weight, {x}, {head}, {}, {}, {kBatch, kTime, labels});
  }

  // Logits of experts [B, T, experts] in fp32, with the parameter `weight`.
  Value router(const Value& x, std::string weight, Dim experts) {
    const Slot table = slot({weight, {{experts}, {x.dims.back()}}, CHASSIS_ROLE_ROUTER, CHASSIS_INIT_NORMAL, init_std});
    return op("score", weight, {x}, {table}, {}, {}, {kBatch, kTime, experts});
  }
  // The experts of each token: [B, T, chosen] i32. Padding of document_ids, if given, gets none. Groups of 1: all
  // experts may be chosen.
  Value top_experts(const Value& logits, Dim chosen, const Value& document_ids = {}, int64_t groups = 1,
                    int64_t top_groups = 1, const Balance& balance = {}) {
    Attrs attrs;
    if (groups != 1) attrs.set("groups", groups).set("top_groups", top_groups);
    if (balance.aux_weight != 0) attrs.set("aux_weight", balance.aux_weight);
    if (balance.form != "layers") attrs.set("balance", balance.form);
    std::vector<Value> inputs = {logits};
    if (document_ids) inputs.push_back(document_ids);
    return op("top_experts", "top_experts", inputs, {}, attrs, {chosen}, {kBatch, kTime, chosen});
  }
  // Their weights. score: softmax, chosen_softmax, sigmoid.
  Value expert_weights(const Value& logits, const Value& experts, std::string_view score, bool normalize = false,
                       double factor = 1) {
    Attrs attrs;
    attrs.set("score", score);
    if (normalize) attrs.set("normalize", true);
    if (factor != 1) attrs.set("factor", factor);
    return op("expert_weights", "expert_weights", {logits, experts}, {}, attrs, {}, experts.dims);
  }
  // Rows of x by expert: [B, T, chosen, …]. With weights, rows of weight · x.
  Value dispatch(const Value& x, const Value& experts, const Value& weights = {}) {
    Dims dims = experts.dims;
    dims.insert(dims.end(), x.dims.begin() + 2, x.dims.end());
    std::vector<Value> inputs = {x, experts};
    if (weights) inputs.push_back(weights);
    return op("dispatch", "dispatch", inputs, {}, {}, {}, std::move(dims));
  }
  // rows · weight[e]ᵀ, with the parameter `name`.weight [experts, out, in].
  Value grouped_linear(const Value& rows, const Value& experts, const std::string& name, Dim num_experts,
                       const Dims& out) {
    const Dims in(rows.dims.begin() + 3, rows.dims.end());
    Dims dims = experts.dims;
    dims.insert(dims.end(), out.begin(), out.end());
    const Slot weight =
        slot({name + ".weight", {{num_experts}, out, in}, CHASSIS_ROLE_WEIGHT, CHASSIS_INIT_NORMAL, init_std});
    return op("grouped_linear", name, {rows, experts}, {weight}, {}, out, std::move(dims));
  }
  // The sum of each token's rows, times their weights if there are any: [B, T, …].
  Value combine(const Value& rows, const Value& experts, const Value& weights = {}) {
    Dims dims = {kBatch, kTime};
    dims.insert(dims.end(), rows.dims.begin() + 3, rows.dims.end());
    std::vector<Value> inputs = {rows, experts};
    if (weights) inputs.push_back(weights);
    return op("combine", "combine", inputs, {}, {}, {}, std::move(dims));
  }

  // sigmoid(score) · x, with one score for each token: [B, T, 1] f32.
  Value gate_tokens(const Value& x, const Value& scores) {
    return op("gate_tokens", "gate_tokens", {x, scores}, {}, {}, {}, x.dims);
  }

  // A plugin's own op, whose output has these dims.
  Value own_op(std::string_view id, std::string_view name, const std::vector<Value>& inputs, const Attrs& attrs,
               const Dims& dims, const OwnOp& declared, const std::vector<Slot>& params = {}) {
    return record_op(id, name, inputs, params, attrs, dims, dims, declared);
  }

  // Any op; a plugin's own is "domain/name", with all its dims in output_dims. `dims` are those of the returned value.
  Value op(std::string_view id, std::string_view name, const std::vector<Value>& inputs,
           const std::vector<Slot>& params, const Attrs& attrs, const Dims& output_dims, Dims dims) {
    return record_op(id, name, inputs, params, attrs, output_dims, std::move(dims), {});
  }

 private:
  Value record_op(std::string_view id, std::string_view name, const std::vector<Value>& inputs,
                  const std::vector<Slot>& params, const Attrs& attrs, const Dims& output_dims, Dims dims,
                  const OwnOp& declared) {
    std::vector<chassis_value_t> input_ids;
    std::vector<chassis_slot_t> param_ids;
    for (const Value& input : inputs) input_ids.push_back(input.id);
    for (Slot param : params) param_ids.push_back(param.id);
    const auto output_ids = ids_of(output_dims);
    const auto mixed_ids = declared.mixed_dims ? ids_of(*declared.mixed_dims) : std::vector<chassis_dim_t>();
    const chassis_op_desc_t raw = {sizeof(chassis_op_desc_t),
                                   static_cast<uint32_t>(input_ids.size()),
                                   str(id),
                                   str(name),
                                   input_ids.data(),
                                   param_ids.data(),
                                   attrs.raw().data(),
                                   output_ids.data(),
                                   static_cast<uint32_t>(param_ids.size()),
                                   static_cast<uint32_t>(attrs.raw().size()),
                                   static_cast<uint32_t>(output_ids.size()),
                                   0,
                                   mixed_ids.data(),
                                   static_cast<uint32_t>(mixed_ids.size()),
                                   declared.mixed_dims ? CHASSIS_OP_MIXES_ONLY : 0u,
                                   declared.output_dtype,
                                   0};
    Value out{0, std::move(dims)};
    host_.check(raw_.op(&raw_, &raw, &out.id));
    return out;
  }

  static std::vector<chassis_dim_t> ids_of(const Dims& dims) {
    std::vector<chassis_dim_t> ids;
    for (Dim dim : dims) ids.push_back(dim.id);
    return ids;
  }
  static Dims behind_time(const Dims& behind) {
    Dims out = {kBatch, kTime};
    out.insert(out.end(), behind.begin(), behind.end());
    return out;
  }
  Slot norm_gain(const Value& x, const std::string& weight, uint32_t init = CHASSIS_INIT_ONES) {
    return slot({weight, {{x.dims.back()}}, CHASSIS_ROLE_NORM, init, 0});
  }

  const Host& host_;
  const chassis_builder_t& raw_;
};

CHASSIS_SDK_END
