// The rules of every op of chassis/op.h: its operands, and the dims of its outputs.
#include <algorithm>
#include <tuple>

#include "host/base/error.hpp"
#include "host/program/record.hpp"

namespace chassis {
namespace {

class OpRule {
 public:
  OpRule(const Program& program, BlockType& block, Op& op) : program_(program), block_(block), op_(op) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw plugin_error("block '" + block_.name + "', op " + op_.id + " '" + op_.name + "': " + what);
  }

  void operands(size_t min_inputs, size_t max_inputs, size_t min_params, size_t max_params) const {
    if (op_.inputs.size() < min_inputs || op_.inputs.size() > max_inputs)
      fail("takes " + counted(min_inputs, max_inputs, "input") + ", got " + std::to_string(op_.inputs.size()));
    if (op_.params.size() < min_params || op_.params.size() > max_params)
      fail("takes " + counted(min_params, max_params, "parameter") + ", got " + std::to_string(op_.params.size()));
    for (size_t i = 0; i < min_inputs; ++i)
      if (op_.inputs[i] == kAbsent) fail("input " + std::to_string(i) + " is required");
  }

  const std::vector<DimId>& dims(size_t input) const { return block_.values[op_.inputs[input]].dims; }
  const Slot& param(size_t i) const { return block_.slots[op_.params[i]]; }

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
    const Slot& slot = param(i);
    if (slot.axes.size() <= axis || slot.axes[axis] != wanted)
      fail("axis " + std::to_string(axis) + " of parameter '" + slot.name + "' must be " + program_.dims_text(wanted));
  }

  const std::vector<DimId>& axis(size_t i, size_t index) const {
    const Slot& slot = param(i);
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
  static std::string counted(size_t low, size_t high, const std::string& noun) {
    const std::string range = low == high ? std::to_string(low) : std::to_string(low) + " to " + std::to_string(high);
    return range + " " + noun + (high == 1 ? "" : "s");
  }
  const Program& program_;
  BlockType& block_;
  Op& op_;
};

constexpr DimId kB = CHASSIS_DIM_BATCH;
constexpr DimId kT = CHASSIS_DIM_TIME;

void embedding(OpRule& r) {
  r.operands(1, 1, 1, 1);
  r.expect_type(0, GraphValueType::kInt32, "ids");
  r.output(r.joined(r.dims(0), r.axis(0, 1)));
}

void linear(OpRule& r, const Op& op, const std::vector<DimId>& output_dims) {
  r.operands(1, 1, 1, 2);
  const Slot& weight = r.param(0);
  if (weight.axes.size() != 2) r.fail("weight '" + weight.name + "' must have two axes");
  const auto& in = weight.axes[1];
  const auto& x = r.dims(0);
  if (x.size() < in.size() || !std::equal(in.rbegin(), in.rend(), x.rbegin()))
    r.fail("input does not end in the dims that weight '" + weight.name + "' contracts");
  const auto& out = output_dims.empty() ? weight.axes[0] : output_dims;
  r.expect_axis(0, 0, out);
  if (op.params.size() == 2) r.expect_axis(1, 0, out);
  r.output(r.joined({x.begin(), x.end() - static_cast<std::ptrdiff_t>(in.size())}, out));
}

void norm(OpRule& r, size_t max_params) {
  r.operands(1, 1, 1, max_params);
  if (r.dims(0).empty()) r.fail("input 0 has no dims, so there is none to normalize");
  r.expect_axis(0, 0, {r.dims(0).back()});
  r.output(r.dims(0));
}

void rope(OpRule& r, const Program& program, const Op& op) {
  r.operands(2, 2, 0, 0);
  r.expect_rank(0, 4);
  r.expect_dims(1, {kB, kT});
  const AttrValue* inv_freq = op.attr("inv_freq");
  if (!inv_freq || !std::holds_alternative<std::vector<double>>(*inv_freq)) r.fail("attribute inv_freq is missing");
  const int64_t head_dim = program.dims[r.dims(0)[3]].size;
  int64_t rotary_dim = head_dim;
  if (const AttrValue* part = op.attr("rotary_dim")) {
    const auto* size = std::get_if<int64_t>(part);
    if (!size) r.fail("attribute rotary_dim is not an integer");
    if (*size < 2 || *size > head_dim || *size % 2 != 0)
      r.fail("rotary_dim " + std::to_string(*size) + " is not an even number from 2 to head_dim " +
             std::to_string(head_dim));
    rotary_dim = *size;
  }
  const std::string which = rotary_dim == head_dim ? "head_dim " : "rotary_dim ";
  const auto check_count = [&](const AttrValue& values, const std::string& name) {
    const auto* list = std::get_if<std::vector<double>>(&values);
    if (!list) r.fail("attribute " + name + " is not a list of numbers");
    if (rotary_dim != 2 * static_cast<int64_t>(list->size()))
      r.fail(which + std::to_string(rotary_dim) + " needs " + std::to_string(rotary_dim / 2) + " values of " + name +
             ", got " + std::to_string(list->size()));
  };
  check_count(*inv_freq, "inv_freq");
  const AttrValue *long_inv_freq = op.attr("long_inv_freq"), *long_from = op.attr("long_from");
  if (!long_inv_freq != !long_from) r.fail("long_inv_freq and long_from need each other");
  if (long_inv_freq) check_count(*long_inv_freq, "long_inv_freq");
  if (long_from && !std::holds_alternative<int64_t>(*long_from)) r.fail("attribute long_from is not an integer");
  r.output(r.dims(0));
}

void channel_scale(OpRule& r) {
  r.operands(1, 1, 1, 1);
  const auto &x = r.dims(0), &channels = r.axis(0, 0);
  if (x.size() < channels.size() || !std::equal(channels.rbegin(), channels.rend(), x.rbegin()))
    r.fail("input does not end in the dims of its parameter");
  r.output(x);
}

// Refuses an attribute that is not a number above 0, and a required one that is missing.
void expect_positive(OpRule& r, const Op& op, const std::string& name, bool required) {
  const AttrValue* value = op.attr(name);
  if (!value && !required) return;
  const double* number = value ? std::get_if<double>(value) : nullptr;
  if (!number || !(*number > 0)) r.fail("attribute " + name + " must be a number above 0");
}

void expect_number(OpRule& r, const Op& op, const std::string& name) {
  const AttrValue* value = op.attr(name);
  if (!value || !std::holds_alternative<double>(*value)) r.fail("attribute " + name + " must be a number");
}

void attention(OpRule& r, const Program& program, const Op& op) {
  r.operands(3, 5, 0, 0);
  expect_positive(r, op, "softcap", false);
  for (size_t i = 0; i < 3; ++i) r.expect_rank(i, 4);
  const auto &q = r.dims(0), &k = r.dims(1), &v = r.dims(2);
  if (q[3] != k[3]) r.fail("query and key differ in their last dim");
  if (k[2] != v[2]) r.fail("key and value differ in their heads");
  const int64_t heads = program.dims[q[2]].size, kv_heads = program.dims[k[2]].size;
  if (kv_heads == 0 || heads % kv_heads != 0)
    r.fail(std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " key-value heads evenly");
  r.output({q[0], q[1], q[2], v[3]});
}

// A reshape must keep the product of the known sizes, and the number of times that B and T, of unknown sizes, occur.
std::tuple<int64_t, int64_t, int64_t> reshape_invariants(const Program& program, const std::vector<DimId>& dims) {
  std::vector<DimId> known = dims;
  std::erase_if(known, [](DimId d) { return d == kB || d == kT; });
  return {program.dim_product(known), std::count(dims.begin(), dims.end(), kB),
          std::count(dims.begin(), dims.end(), kT)};
}

void elementwise(OpRule& r) {
  r.operands(2, 2, 0, 0);
  r.expect_dims(1, r.dims(0));
  r.output(r.dims(0), r.type_like_inputs());
}

constexpr std::string_view kOps[] = {"embedding",
                                     "linear",
                                     "rms_norm",
                                     "layer_norm",
                                     "rope",
                                     "attention",
                                     "gated_activation",
                                     "add",
                                     "mul",
                                     "activation",
                                     "reshape",
                                     "cross_entropy",
                                     "score",
                                     "scale",
                                     "softcap",
                                     "dropout",
                                     "channel_scale",
                                     "partial_cross_entropy",
                                     "total_cross_entropy"};

}  // namespace

bool is_op_name(std::string_view id) {
  return std::find(std::begin(kOps), std::end(kOps), id) != std::end(kOps) || id.find('/') != std::string_view::npos;
}

void infer_outputs(const Program& program, BlockType& block, Op& op, const std::vector<DimId>& output_dims,
                   GraphValueType own_type) {
  OpRule r(program, block, op);
  if (op.id == "embedding") return embedding(r);
  if (op.id == "linear") return linear(r, op, output_dims);
  if (op.id == "rms_norm") return norm(r, 1);
  if (op.id == "layer_norm") return norm(r, 2);
  if (op.id == "rope") return rope(r, program, op);
  if (op.id == "attention") return attention(r, program, op);
  if (op.id == "gated_activation" || op.id == "add" || op.id == "mul") return elementwise(r);
  if (op.id == "channel_scale") return channel_scale(r);
  if (op.id == "dropout") {
    r.operands(1, 1, 0, 0);
    const AttrValue* p = op.attr("p");
    const double* number = p ? std::get_if<double>(p) : nullptr;
    if (!number || !(*number >= 0 && *number < 1)) r.fail("attribute p must be a number from 0 on and below 1");
    if (r.dims(0).size() < 2 || r.dims(0)[0] != kB || r.dims(0)[1] != kT) r.fail("input 0 must begin with [B, T]");
    return r.output(r.dims(0));
  }
  if (op.id == "activation" || op.id == "scale" || op.id == "softcap") {
    r.operands(1, 1, 0, 0);
    if (op.id == "softcap") expect_positive(r, op, "cap", true);
    if (op.id == "scale") expect_number(r, op, "factor");
    return r.output(r.dims(0), r.type_like_inputs());
  }
  if (op.id == "reshape") {
    r.operands(1, 1, 0, 0);
    if (reshape_invariants(program, output_dims) != reshape_invariants(program, r.dims(0)))
      r.fail("cannot view " + program.dims_text(r.dims(0)) + " as " + program.dims_text(output_dims));
    return r.output(output_dims);
  }
  if (op.id == "cross_entropy") {
    r.operands(2, 2, 0, 0);
    r.expect_dims(1, {kB, kT});
    r.expect_type(1, GraphValueType::kInt32, "labels");
    return r.output({}, GraphValueType::kFloat32);
  }
  if (op.id == "partial_cross_entropy") {
    r.operands(2, 2, 0, 0);
    r.expect_dims(1, {kB, kT});
    r.expect_type(1, GraphValueType::kInt32, "labels");
    r.output({kB, kT}, GraphValueType::kFloat32);
    return r.output({kB, kT}, GraphValueType::kFloat32);
  }
  if (op.id == "total_cross_entropy") {
    r.operands(3, 3, 0, 0);
    for (size_t i = 0; i < 3; ++i) r.expect_dims(i, {kB, kT});
    r.expect_type(2, GraphValueType::kInt32, "labels");
    return r.output({}, GraphValueType::kFloat32);
  }
  if (op.id == "score") {
    r.operands(2, 2, 1, 1);
    return r.output(r.joined({kB}, r.axis(0, 0)));
  }
  if (op.id.find('/') == std::string::npos) r.fail("no such op; a plugin's own op is named \"domain/name\"");
  r.output(output_dims, own_type);
}

}  // namespace chassis
