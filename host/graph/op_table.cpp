// The rows, and the rules that they name.
#include "host/graph/op_table.hpp"

#include <algorithm>
#include <utility>

#include "chassis/router_sums.hpp"
#include "host/base/error.hpp"
#include "host/graph/collective_ops.hpp"

namespace chassis {

class OpRule {
 public:
  OpRule(const Program& program, BlockType& block, Op& op, const std::vector<DimId>& output_dims,
         GraphValueType own_type)
      : program_(program), block_(block), op_(op), output_dims_(output_dims), own_type_(own_type) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw plugin_error("block '" + block_.name + "', op " + op_.id.text() + " '" + op_.name + "': " + what);
  }

  const Program& program() const { return program_; }
  const Op& op() const { return op_; }
  const std::vector<DimId>& output_dims() const { return output_dims_; }
  GraphValueType own_type() const { return own_type_; }

  void check_operands(const OpSpec& spec) const {
    check_count(spec.inputs, op_.inputs.size(), "input");
    check_count(spec.params, op_.params.size(), "parameter");
    for (size_t i = 0; i < spec.inputs.min; ++i)
      if (op_.inputs[i] == kAbsent) fail("input " + std::to_string(i) + " is required");
  }
  // Attributes that the row does not list are left to the providers, which refuse those that they do not know.
  void check_attrs(const OpSpec& spec) const {
    for (const AttrSpec& attr : spec.attrs) {
      const AttrValue* value = op_.attr(attr.name);
      const std::string name(attr.name);
      if (value == nullptr && attr.required) fail("attribute " + name + " is missing");
      if (value != nullptr && value->index() + 1 != attr.tag)
        fail("attribute " + name + " is not " + type_text(attr.tag));
    }
  }
  double number(std::string_view attr) const { return std::get<double>(*op_.attr(attr)); }
  const std::string& text(std::string_view attr) const { return std::get<std::string>(*op_.attr(attr)); }

  const std::vector<DimId>& dims(size_t input) const { return block_.values[op_.inputs[input]].dims; }
  const ParameterSlot& param(size_t i) const { return block_.slots[op_.params[i]]; }

  void expect_dims(size_t input, const std::vector<DimId>& wanted) const {
    if (dims(input) != wanted)
      fail("input " + std::to_string(input) + " is " + program_.dims_text(dims(input)) + ", expected " +
           program_.dims_text(wanted));
  }
  void expect_type(size_t input, GraphValueType type, const char* word) const {
    if (block_.values[op_.inputs[input]].type != type) fail("input " + std::to_string(input) + " must be " + word);
  }
  void expect_rank(size_t input, size_t rank) const {
    if (dims(input).size() != rank)
      fail("input " + std::to_string(input) + " is " + program_.dims_text(dims(input)) + ", expected " +
           std::to_string(rank) + " dims");
  }
  void expect_axis(size_t i, size_t axis, const std::vector<DimId>& wanted) const {
    const ParameterSlot& slot = param(i);
    if (slot.axes.size() <= axis || slot.axes[axis] != wanted)
      fail("axis " + std::to_string(axis) + " of parameter '" + slot.name + "' must be " + program_.dims_text(wanted));
  }

  const std::vector<DimId>& axis(size_t i, size_t index) const {
    const ParameterSlot& slot = param(i);
    if (slot.axes.size() <= index)
      fail("parameter '" + slot.name + "' must have at least " + std::to_string(index + 1) +
           (index == 0 ? " axis" : " axes"));
    return slot.axes[index];
  }

  std::vector<DimId> joined(std::vector<DimId> head, const std::vector<DimId>& tail) const {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  }

  // f32 inputs, such as losses, give f32.
  GraphValueType type_like_inputs() const {
    const auto is_float = [&](ValueId v) { return block_.values[v].type == GraphValueType::kFloat32; };
    return std::ranges::all_of(op_.inputs, is_float) ? GraphValueType::kFloat32 : GraphValueType::kCompute;
  }

  void output(std::vector<DimId> dims, GraphValueType type = GraphValueType::kCompute) {
    op_.outputs.push_back(block_.add_value({op_.name, std::move(dims), type, {}}));
  }

 private:
  // Tags follow the alternatives of AttrValue.
  static const char* type_text(uint32_t tag) {
    constexpr const char* kTexts[] = {"an integer", "a number", "a text", "a list of integers", "a list of numbers"};
    return kTexts[tag - 1];
  }
  void check_count(OpSpec::Count count, size_t got, const std::string& noun) const {
    if (got >= count.min && got <= count.max) return;
    const std::string range = count.min == count.max ? std::to_string(count.min)
                                                     : std::to_string(count.min) + " to " + std::to_string(count.max);
    fail("takes " + range + " " + noun + (count.max == 1 ? "" : "s") + ", got " + std::to_string(got));
  }
  const Program& program_;
  BlockType& block_;
  Op& op_;
  const std::vector<DimId>& output_dims_;
  GraphValueType own_type_;
};

namespace {

constexpr DimId kB = CHASSIS_DIM_BATCH;
constexpr DimId kT = CHASSIS_DIM_TIME;

void embedding(OpRule& r) {
  r.expect_type(0, GraphValueType::kInt32, "ids");
  r.output(r.joined(r.dims(0), r.axis(0, 1)));
}

void linear(OpRule& r) {
  const ParameterSlot& weight = r.param(0);
  if (weight.axes.size() != 2) r.fail("weight '" + weight.name + "' must have two axes");
  const auto& in = weight.axes[1];
  const auto& x = r.dims(0);
  if (x.size() < in.size() || !std::equal(in.rbegin(), in.rend(), x.rbegin()))
    r.fail("input does not end in the dims that weight '" + weight.name + "' contracts");
  const auto& out = r.output_dims().empty() ? weight.axes[0] : r.output_dims();
  r.expect_axis(0, 0, out);
  if (r.op().params.size() == 2) r.expect_axis(1, 0, out);
  r.output(r.joined({x.begin(), x.end() - static_cast<std::ptrdiff_t>(in.size())}, out));
}

// The rows of its input, for each token, times the elements of the weight.
double linear_products(const Program& program, const BlockType& block, const Op& op, const DimSizes& sizes) {
  const ParameterSlot& weight = block.slots[op.params[0]];
  const auto shape = program.global_shape(weight);
  const auto& x = block.values[op.inputs[0]].dims;
  double rows = 1.0;
  for (size_t d = 0; d + weight.axes[1].size() < x.size(); ++d)
    rows *= static_cast<double>(sizes.size_of(program, x[d]));
  const double tokens = static_cast<double>(sizes.batch) * static_cast<double>(sizes.time);
  return rows / tokens * static_cast<double>(shape[0]) * static_cast<double>(shape[1]) /
         static_cast<double>(op.attr_int(kNumChunks, 1));
}

void norm(OpRule& r) {
  if (r.dims(0).empty()) r.fail("input 0 has no dims, so there is none to normalize");
  if (!r.op().params.empty()) r.expect_axis(0, 0, {r.dims(0).back()});
  r.output(r.dims(0));
}

void rms_norm(OpRule& r) {
  const bool plain = r.op().attr_int("plain", 0) != 0;
  if (plain != r.op().params.empty()) r.fail(plain ? "is plain, but has a weight" : "has no weight, but is not plain");
  if (plain && r.op().attr("offset") != nullptr) r.fail("is plain, but its weight has an offset");
  norm(r);
}

void rope(OpRule& r) {
  r.expect_rank(0, 4);
  r.expect_dims(1, {kB, kT});
  const Op& op = r.op();
  const int64_t head_dim = r.program().dims[r.dims(0)[3]].size;
  const int64_t rotary_dim = op.attr_int("rotary_dim", head_dim);
  if (op.attr("rotary_dim") && (rotary_dim < 2 || rotary_dim > head_dim || rotary_dim % 2 != 0))
    r.fail("rotary_dim " + std::to_string(rotary_dim) + " is not an even number from 2 to head_dim " +
           std::to_string(head_dim));
  for (const char* name : {"inv_freq", "long_inv_freq"}) {
    const AttrValue* values = op.attr(name);
    if (values == nullptr) continue;
    const size_t count = std::get<std::vector<double>>(*values).size();
    if (rotary_dim != 2 * static_cast<int64_t>(count))
      r.fail((rotary_dim == head_dim ? "head_dim " : "rotary_dim ") + std::to_string(rotary_dim) + " needs " +
             std::to_string(rotary_dim / 2) + " values of " + name + ", got " + std::to_string(count));
  }
  if (!op.attr("long_inv_freq") != !op.attr("long_from")) r.fail("long_inv_freq and long_from need each other");
  r.output(r.dims(0));
}

void channel_scale(OpRule& r) {
  const auto &x = r.dims(0), &channels = r.axis(0, 0);
  if (x.size() < channels.size() || !std::equal(channels.rbegin(), channels.rend(), x.rbegin()))
    r.fail("input does not end in the dims of its parameter");
  r.output(x);
}

void expect_positive(OpRule& r, const std::string& attr) {
  if (r.op().attr(attr) != nullptr && !(r.number(attr) > 0)) r.fail("attribute " + attr + " must be a number above 0");
}

void attention(OpRule& r) {
  expect_positive(r, "softcap");
  for (size_t i = 0; i < 3; ++i) r.expect_rank(i, 4);
  const auto &q = r.dims(0), &k = r.dims(1), &v = r.dims(2);
  if (q[3] != k[3]) r.fail("query and key differ in their last dim");
  if (k[2] != v[2]) r.fail("key and value differ in their heads");
  const int64_t heads = r.program().dims[q[2]].size, kv_heads = r.program().dims[k[2]].size;
  if (kv_heads == 0 || heads % kv_heads != 0)
    r.fail(std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " key-value heads evenly");
  r.output({q[0], q[1], q[2], v[3]});
}

double attention_products(const Program& program, const BlockType& block, const Op& op, const DimSizes& sizes) {
  const auto& q = block.values[op.inputs[0]].dims;
  const auto& v = block.values[op.inputs[2]].dims;
  const double heads = static_cast<double>(program.dims[q[2]].size);
  const double dims = static_cast<double>(program.dims[q[3]].size + program.dims[v[3]].size);
  return heads * dims * static_cast<double>(sizes.time) * (op.attr_int("causal", 0) ? 0.5 : 1.0);
}

// A reshape must keep the product of the fixed sizes, and the dims whose sizes are not fixed, in any order.
std::pair<int64_t, std::vector<DimId>> reshape_invariants(const Program& program, std::vector<DimId> dims) {
  const auto others =
      std::stable_partition(dims.begin(), dims.end(), [&](DimId d) { return program.dims[d].is_fixed(); });
  std::vector<DimId> not_fixed(others, dims.end());
  dims.erase(others, dims.end());
  std::ranges::sort(not_fixed);
  return {program.dim_product(dims), std::move(not_fixed)};
}

void reshape(OpRule& r) {
  const Program& program = r.program();
  if (reshape_invariants(program, r.output_dims()) != reshape_invariants(program, r.dims(0)))
    r.fail("cannot view " + program.dims_text(r.dims(0)) + " as " + program.dims_text(r.output_dims()));
  r.output(r.output_dims());
}

// The only output dim.
DimId last_dim(OpRule& r) {
  if (r.output_dims().size() != 1) r.fail("needs one output dim: the last one of its output");
  return r.output_dims()[0];
}

void slice(OpRule& r) {
  if (r.dims(0).size() < 3) r.fail("input 0 has no dims after [B, T]");
  const DimId dim = last_dim(r);
  const int64_t first = r.op().attr_int("first", 0), size = r.program().dims[dim].size,
                all = r.program().dims[r.dims(0).back()].size;
  if (first < 0 || first + size > all)
    r.fail("elements " + std::to_string(first) + " to " + std::to_string(first + size) + " are not all among " +
           std::to_string(all));
  std::vector<DimId> dims = r.dims(0);
  dims.back() = dim;
  r.output(std::move(dims));
}

void concat(OpRule& r) {
  for (size_t i = 0; i < 2; ++i) r.expect_rank(i, 4);
  const Program& program = r.program();
  const auto &a = r.dims(0), &b = r.dims(1);
  if (a[0] != b[0] || a[1] != b[1] || (a[2] != b[2] && program.dims[b[2]].size != 1))
    r.fail("cannot join " + program.dims_text(a) + " and " + program.dims_text(b));
  const DimId dim = last_dim(r);
  if (program.dims[a[3]].size + program.dims[b[3]].size != program.dims[dim].size)
    r.fail(program.dims_text(a) + " and " + program.dims_text(b) + " do not give " + program.dims_text({dim}));
  r.output({a[0], a[1], a[2], dim});
}

void unary(OpRule& r) { r.output(r.dims(0), r.type_like_inputs()); }

void softcap(OpRule& r) {
  expect_positive(r, "cap");
  unary(r);
}

void clip(OpRule& r) {
  expect_positive(r, "limit");
  unary(r);
}

void position_scale(OpRule& r) {
  expect_positive(r, "floor_scale");
  if (r.dims(0).size() < 2 || r.dims(0)[0] != kB || r.dims(0)[1] != kT) r.fail("input 0 must begin with [B, T]");
  r.expect_dims(1, {kB, kT});
  r.expect_type(1, GraphValueType::kInt32, "positions");
  r.output(r.dims(0));
}

void binary(OpRule& r) {
  r.expect_dims(1, r.dims(0));
  r.output(r.dims(0), r.type_like_inputs());
}

void dropout(OpRule& r) {
  if (!(r.number("p") >= 0 && r.number("p") < 1)) r.fail("attribute p must be a number of at least 0 and below 1");
  if (r.dims(0).size() < 2 || r.dims(0)[0] != kB || r.dims(0)[1] != kT) r.fail("input 0 must begin with [B, T]");
  r.output(r.dims(0));
}

void cross_entropy(OpRule& r) {
  r.expect_dims(1, {kB, kT});
  r.expect_type(1, GraphValueType::kInt32, "labels");
  r.output({}, GraphValueType::kFloat32);
}

void partial_cross_entropy(OpRule& r) {
  r.expect_dims(1, {kB, kT});
  r.expect_type(1, GraphValueType::kInt32, "labels");
  for (int i = 0; i < 2; ++i) r.output({kB, kT}, GraphValueType::kFloat32);
}

void total_cross_entropy(OpRule& r) {
  for (size_t i = 0; i < 3; ++i) r.expect_dims(i, {kB, kT});
  r.expect_type(2, GraphValueType::kInt32, "labels");
  r.output({}, GraphValueType::kFloat32);
}

void token_logp(OpRule& r) {
  r.expect_dims(1, {kB, kT});
  r.expect_type(1, GraphValueType::kInt32, "labels");
  r.output({kB, kT}, GraphValueType::kFloat32);
}

void total_token_logp(OpRule& r) {
  for (size_t i = 0; i < 3; ++i) r.expect_dims(i, {kB, kT});
  r.expect_type(2, GraphValueType::kInt32, "labels");
  r.output({kB, kT}, GraphValueType::kFloat32);
}

// Ids of several tokens of each position. Returns their dims.
std::vector<DimId> expect_top_ids(const OpRule& r, size_t input) {
  r.expect_rank(input, 3);
  const std::vector<DimId>& dims = r.dims(input);
  if (dims[0] != kB || dims[1] != kT) r.fail("input " + std::to_string(input) + " must begin with [B, T]");
  r.expect_type(input, GraphValueType::kInt32, "ids");
  return dims;
}

void topk_logp(OpRule& r) {
  expect_positive(r, "temperature");
  const std::vector<DimId> dims = expect_top_ids(r, 2);
  token_logp(r);
  r.output(dims, GraphValueType::kFloat32);
}

void partial_topk_logp(OpRule& r) {
  expect_positive(r, "temperature");
  const std::vector<DimId> dims = expect_top_ids(r, 2);
  partial_cross_entropy(r);
  r.output({kB, kT}, GraphValueType::kFloat32);
  r.output(dims, GraphValueType::kFloat32);
}

void total_topk_logp(OpRule& r) {
  const std::vector<DimId> dims = expect_top_ids(r, 5);
  for (const size_t i : {0, 1, 2, 4}) r.expect_dims(i, {kB, kT});
  r.expect_dims(3, dims);
  r.expect_type(4, GraphValueType::kInt32, "labels");
  r.output({kB, kT}, GraphValueType::kFloat32);
  r.output(dims, GraphValueType::kFloat32);
}

void score(OpRule& r) {
  r.expect_rank(0, 3);
  r.expect_axis(0, 1, {r.dims(0)[2]});
  r.output(r.joined({r.dims(0)[0], r.dims(0)[1]}, r.axis(0, 0)), GraphValueType::kFloat32);
}

// The last dim of [B, T, k].
DimId chosen_dim(OpRule& r, size_t input) {
  r.expect_rank(input, 3);
  const DimId chosen = r.dims(input)[2];
  r.expect_dims(input, {kB, kT, chosen});
  return chosen;
}

void expect_experts(OpRule& r, size_t input) {
  chosen_dim(r, input);
  r.expect_type(input, GraphValueType::kInt32, "experts");
}

void top_experts(OpRule& r) {
  const auto size_of = [&](DimId dim) { return r.program().dims[dim].size; };
  const int64_t num_experts = size_of(chosen_dim(r, 0));
  if (r.op().inputs.size() > 1) r.expect_dims(1, {kB, kT});
  const int64_t chosen = size_of(last_dim(r));
  const int64_t groups = r.op().attr_int("groups", 1), top_groups = r.op().attr_int("top_groups", groups);
  if (groups < 1 || num_experts % groups != 0)
    r.fail(std::to_string(num_experts) + " experts cannot be divided into " + std::to_string(groups) + " groups");
  if (top_groups < 1 || top_groups > groups)
    r.fail("top_groups " + std::to_string(top_groups) + " is not a number from 1 to " + std::to_string(groups));
  if (const int64_t choice = num_experts / groups * top_groups; chosen > choice)
    r.fail("chooses " + std::to_string(chosen) + " of " + std::to_string(choice) + " experts");
  r.output({kB, kT, r.output_dims()[0]}, GraphValueType::kInt32);
}

int64_t size_of_last(const OpRule& r, size_t input) { return r.program().dims[r.dims(input).back()].size; }

void router_stats(OpRule& r) {
  chosen_dim(r, 0);
  expect_experts(r, 1);
  const DimId sums = last_dim(r);
  const int64_t num_experts = size_of_last(r, 0), size = r.program().dims[sums].size;
  if (const int64_t expected = RouterSumsPlaces{num_experts}.size(); size != expected)
    r.fail("its output dim has size " + std::to_string(size) + ", but " + std::to_string(num_experts) +
           " experts give " + std::to_string(expected) + " sums");
  r.output({kB, sums}, GraphValueType::kFloat32);
  r.output({kB}, GraphValueType::kFloat32);
}

void load_balance(OpRule& r) {
  r.expect_rank(0, 2);
  r.expect_type(0, GraphValueType::kFloat32, "f32");
  if (const int64_t size = size_of_last(r, 0); r.dims(0)[0] != kB || size < 3 || size % 2 == 0)
    r.fail("input 0 is " + r.program().dims_text(r.dims(0)) + ", expected the sums of router_stats");
  r.expect_dims(1, {kB, kT});
  r.expect_type(1, GraphValueType::kInt32, "labels");
  if (r.op().attr_int("chosen", 0) < 1) r.fail("attribute chosen must be at least 1");
  for (const char* weight : {"aux_weight", "z_weight"})
    if (!(r.number(weight) >= 0)) r.fail("attribute " + std::string(weight) + " must be a number of at least 0");
  if (const std::string& form = r.text("balance"); form != "layers" && form != "batch" && form != "sequence")
    r.fail("attribute balance is '" + form + "', expected layers, batch or sequence");
  r.output({}, GraphValueType::kFloat32);
}

void expert_weights(OpRule& r) {
  chosen_dim(r, 0);
  expect_experts(r, 1);
  r.output(r.dims(1), GraphValueType::kFloat32);
}

void dispatch(OpRule& r) {
  expect_experts(r, 1);
  const auto &x = r.dims(0), &experts = r.dims(1);
  if (x.size() < 3 || x[0] != kB || x[1] != kT) r.fail("input 0 must be [B, T, …]");
  if (r.op().inputs.size() > 2) r.expect_dims(2, experts);
  r.output(r.joined(experts, {x.begin() + 2, x.end()}));
}

// Input 0 has rows of experts, input 1 names them.
void expect_rows(OpRule& r) {
  expect_experts(r, 1);
  const auto &rows = r.dims(0), &experts = r.dims(1);
  if (rows.size() < 4 || !std::equal(experts.begin(), experts.end(), rows.begin()))
    r.fail("input 0 must be " + r.program().dims_text(experts) + " and further dims");
}

void grouped_linear(OpRule& r) {
  expect_rows(r);
  const ParameterSlot& weight = r.param(0);
  if (weight.axes.size() != 3 || weight.axes[0].size() != 1)
    r.fail("weight '" + weight.name + "' must have three axes, of which the first is the experts");
  const auto& in = weight.axes[2];
  const auto &rows = r.dims(0), &experts = r.dims(1);
  if (!std::equal(rows.begin() + 3, rows.end(), in.begin(), in.end()))
    r.fail("input 0 does not end in the dims that weight '" + weight.name + "' contracts");
  const auto& out = r.output_dims().empty() ? weight.axes[1] : r.output_dims();
  r.expect_axis(0, 1, out);
  if (r.op().params.size() == 2) {
    r.expect_axis(1, 0, weight.axes[0]);
    r.expect_axis(1, 1, out);
  }
  r.output(r.joined(experts, out));
}

double grouped_products(const Program& program, const BlockType& block, const Op& op, const DimSizes&) {
  const auto shape = program.global_shape(block.slots[op.params[0]]);
  const DimId chosen = block.values[op.inputs[1]].dims[2];
  return static_cast<double>(program.dims[chosen].size) * static_cast<double>(shape[1]) * static_cast<double>(shape[2]);
}

void combine(OpRule& r) {
  expect_rows(r);
  if (r.op().inputs.size() > 2) r.expect_dims(2, r.dims(1));
  const auto& rows = r.dims(0);
  r.output(r.joined({kB, kT}, {rows.begin() + 3, rows.end()}));
}

void gate_tokens(OpRule& r) {
  r.expect_rank(1, 3);
  if (const DimId one = r.dims(1)[2]; r.program().dims[one].size != 1 || r.dims(1)[0] != kB || r.dims(1)[1] != kT)
    r.fail("input 1 is " + r.program().dims_text(r.dims(1)) + ", expected one score for each token");
  if (r.dims(0).size() < 3 || r.dims(0)[0] != kB || r.dims(0)[1] != kT) r.fail("input 0 must be [B, T, …]");
  r.output(r.dims(0));
}

void own(OpRule& r) { r.output(r.output_dims(), r.own_type()); }

void unknown(OpRule& r) { r.fail("no such op; a plugin's own op is named \"domain/name\""); }

constexpr uint32_t kInt = CHASSIS_ATTR_INT, kFloat = CHASSIS_ATTR_FLOAT, kString = CHASSIS_ATTR_STRING,
                   kFloats = CHASSIS_ATTR_FLOAT_LIST;
constexpr bool kOptional = false;

constexpr AttrSpec kEmbeddingAttrs[] = {{"first", kInt, kOptional}};
constexpr AttrSpec kRmsNormAttrs[] = {{"eps", kFloat}, {"offset", kFloat, kOptional}, {"plain", kInt, kOptional}};
constexpr AttrSpec kLayerNormAttrs[] = {{"eps", kFloat}};
constexpr AttrSpec kRopeAttrs[] = {
    {"inv_freq", kFloats},           {"factor", kFloat, kOptional},         {"interleaved", kInt, kOptional},
    {"rotary_dim", kInt, kOptional}, {"long_inv_freq", kFloats, kOptional}, {"long_from", kInt, kOptional}};
constexpr AttrSpec kAttentionAttrs[] = {
    {"scale", kFloat, kOptional},   {"causal", kInt, kOptional},   {"window", kInt, kOptional},
    {"chunk", kInt, kOptional},     {"document", kInt, kOptional}, {"prefix", kInt, kOptional},
    {"softcap", kFloat, kOptional}, {kQueryPart, kInt, kOptional}, {kKeyPart, kInt, kOptional}};
constexpr AttrSpec kActivationAttrs[] = {{"function", kString}};
constexpr AttrSpec kScaleAttrs[] = {{"factor", kFloat}};
constexpr AttrSpec kSoftcapAttrs[] = {{"cap", kFloat}};
constexpr AttrSpec kClipAttrs[] = {{"limit", kFloat}};
constexpr AttrSpec kPositionScaleAttrs[] = {{"floor_scale", kFloat}, {"attn_scale", kFloat}};
constexpr AttrSpec kDropoutAttrs[] = {{"p", kFloat}, {"first", kInt, kOptional}, {kQueryPart, kInt, kOptional}};
constexpr AttrSpec kCrossEntropyAttrs[] = {{"ignore_index", kInt, kOptional}};
constexpr AttrSpec kSliceAttrs[] = {{"first", kInt}};
constexpr AttrSpec kTopExpertsAttrs[] = {{"groups", kInt, kOptional},
                                         {"top_groups", kInt, kOptional},
                                         {kAuxWeightAttr, kFloat, kOptional},
                                         {kBalanceAttr, kString, kOptional}};
constexpr AttrSpec kLoadBalanceAttrs[] = {{"chosen", kInt},
                                          {kAuxWeightAttr, kFloat},
                                          {"z_weight", kFloat},
                                          {kBalanceAttr, kString},
                                          {"ignore_index", kInt, kOptional}};
constexpr AttrSpec kExpertWeightsAttrs[] = {
    {"score", kString}, {"normalize", kInt, kOptional}, {"factor", kFloat, kOptional}};
constexpr AttrSpec kPartialCrossEntropyAttrs[] = {{"ignore_index", kInt, kOptional}, {"first", kInt}, {"count", kInt}};
constexpr AttrSpec kTopkLogpAttrs[] = {{"ignore_index", kInt, kOptional}, {"temperature", kFloat}};
constexpr AttrSpec kPartialTopkLogpAttrs[] = {
    {"ignore_index", kInt, kOptional}, {"temperature", kFloat}, {"first", kInt}, {"count", kInt}};

constexpr OpSpec kOps[] = {
    {.id = "embedding",
     .inputs = {1, 1},
     .params = {1, 1},
     .attrs = kEmbeddingAttrs,
     .infer = embedding,
     .placement = OpPlacement::kEmbedding,
     .is_cheap = true},
    {.id = "linear",
     .inputs = {1, 1},
     .params = {1, 2},
     .infer = linear,
     .placement = OpPlacement::kLinear,
     .products = linear_products},
    {.id = "rms_norm", .inputs = {1, 1}, .params = {0, 1}, .attrs = kRmsNormAttrs, .infer = rms_norm, .is_cheap = true},
    {.id = "layer_norm", .inputs = {1, 1}, .params = {1, 2}, .attrs = kLayerNormAttrs, .infer = norm, .is_cheap = true},
    {.id = "rope", .inputs = {2, 2}, .attrs = kRopeAttrs, .infer = rope, .is_cheap = true, .length_attr = "long_from"},
    {.id = "attention",
     .inputs = {3, 5},
     .attrs = kAttentionAttrs,
     .infer = attention,
     .placement = OpPlacement::kAttention,
     .products = attention_products},
    {.id = "activation", .inputs = {1, 1}, .attrs = kActivationAttrs, .infer = unary, .is_cheap = true},
    {.id = "gated_activation", .inputs = {2, 2}, .attrs = kActivationAttrs, .infer = binary, .is_cheap = true},
    {.id = "add", .inputs = {2, 2}, .infer = binary, .is_cheap = true, .shares_grad = true},
    {.id = "mul", .inputs = {2, 2}, .infer = binary, .is_cheap = true},
    {.id = "scale", .inputs = {1, 1}, .attrs = kScaleAttrs, .infer = unary, .is_cheap = true},
    {.id = "softcap", .inputs = {1, 1}, .attrs = kSoftcapAttrs, .infer = softcap, .is_cheap = true},
    {.id = "clip", .inputs = {1, 1}, .attrs = kClipAttrs, .infer = clip, .is_cheap = true},
    {.id = "position_scale", .inputs = {2, 2}, .attrs = kPositionScaleAttrs, .infer = position_scale, .is_cheap = true},
    {.id = "channel_scale",
     .inputs = {1, 1},
     .params = {1, 1},
     .infer = channel_scale,
     .placement = OpPlacement::kChannelScale,
     .is_cheap = true},
    {.id = "dropout", .inputs = {1, 1}, .attrs = kDropoutAttrs, .infer = dropout, .is_cheap = true, .is_random = true},
    {.id = "reshape", .inputs = {1, 1}, .infer = reshape, .is_cheap = true, .is_view = true},
    {.id = "slice", .inputs = {1, 1}, .attrs = kSliceAttrs, .infer = slice, .is_cheap = true},
    {.id = "concat", .inputs = {2, 2}, .infer = concat, .placement = OpPlacement::kConcat, .is_cheap = true},
    {.id = "cross_entropy",
     .inputs = {2, 2},
     .attrs = kCrossEntropyAttrs,
     .infer = cross_entropy,
     .placement = OpPlacement::kLoss},
    {.id = "partial_cross_entropy",
     .inputs = {2, 2},
     .attrs = kPartialCrossEntropyAttrs,
     .infer = partial_cross_entropy},
    {.id = "total_cross_entropy", .inputs = {3, 3}, .attrs = kCrossEntropyAttrs, .infer = total_cross_entropy},
    {.id = "token_logp",
     .inputs = {2, 2},
     .attrs = kCrossEntropyAttrs,
     .infer = token_logp,
     .placement = OpPlacement::kTokenLogp},
    {.id = "total_token_logp", .inputs = {3, 3}, .attrs = kCrossEntropyAttrs, .infer = total_token_logp},
    {.id = "topk_logp",
     .inputs = {3, 3},
     .attrs = kTopkLogpAttrs,
     .infer = topk_logp,
     .placement = OpPlacement::kTopkLogp},
    {.id = "partial_topk_logp", .inputs = {3, 3}, .attrs = kPartialTopkLogpAttrs, .infer = partial_topk_logp},
    {.id = "total_topk_logp", .inputs = {6, 6}, .attrs = kCrossEntropyAttrs, .infer = total_topk_logp},
    {.id = "score", .inputs = {1, 1}, .params = {1, 1}, .infer = score},
    {.id = "top_experts", .inputs = {1, 2}, .attrs = kTopExpertsAttrs, .infer = top_experts, .is_choice = true},
    {.id = "expert_weights", .inputs = {2, 2}, .attrs = kExpertWeightsAttrs, .infer = expert_weights, .is_cheap = true},
    {.id = "router_stats", .inputs = {2, 2}, .infer = router_stats, .placement = OpPlacement::kRowSums},
    {.id = "load_balance",
     .inputs = {2, 2},
     .attrs = kLoadBalanceAttrs,
     .infer = load_balance,
     .placement = OpPlacement::kOfRowSums},
    {.id = "dispatch", .inputs = {2, 3}, .infer = dispatch, .placement = OpPlacement::kDispatch, .is_cheap = true},
    {.id = "grouped_linear",
     .inputs = {2, 2},
     .params = {1, 2},
     .infer = grouped_linear,
     .placement = OpPlacement::kGroupedLinear,
     .products = grouped_products},
    {.id = "gate_tokens", .inputs = {2, 2}, .infer = gate_tokens, .is_cheap = true},
    {.id = "combine", .inputs = {2, 3}, .infer = combine, .placement = OpPlacement::kCombine},
};

constexpr OpSpec::Count kAny = {0, UINT32_MAX};
constexpr OpSpec kOwnOp = {.id = "", .inputs = kAny, .params = kAny, .infer = own, .placement = OpPlacement::kOwn};
constexpr OpSpec kUnknownOp = {
    .id = "", .inputs = kAny, .params = kAny, .infer = unknown, .placement = OpPlacement::kNone};

const OpSpec* row_of(std::string_view id) {
  const auto row = std::ranges::find(kOps, id, &OpSpec::id);
  return row == std::end(kOps) ? nullptr : row;
}

}  // namespace

int64_t Op::changes_at_length() const { return spec().length_attr.empty() ? 0 : attr_int(spec().length_attr, 0); }

std::span<const OpSpec> op_table() { return kOps; }

const OpSpec& OpId::unknown() { return kUnknownOp; }

OpId::OpId(std::string text) : text_(std::move(text)) {
  if (const OpSpec* row = row_of(text_))
    spec_ = row;
  else if (is_own())
    spec_ = &kOwnOp;
}

OpId::OpId(CommOp op) : text_(comm_spec(op).name), comm_(op) {}

bool is_op_name(std::string_view id) { return row_of(id) != nullptr || id.find('/') != std::string_view::npos; }

void infer_outputs(const Program& program, BlockType& block, Op& op, const std::vector<DimId>& output_dims,
                   GraphValueType own_type) {
  const OpSpec& spec = op.spec();
  OpRule rule(program, block, op, output_dims, own_type);
  rule.check_operands(spec);
  rule.check_attrs(spec);
  spec.infer(rule);
}

}  // namespace chassis
