// Names, shapes and lookups of the recorded program.
#include "host/graph/program.hpp"

#include <algorithm>

#include "host/base/error.hpp"

namespace chassis {

const AttrValue* Op::attr(std::string_view key) const {
  for (const auto& [name, value] : attrs)
    if (name == key) return &value;
  return nullptr;
}

int64_t Op::attr_int(std::string_view key, int64_t fallback) const {
  const AttrValue* value = attr(key);
  return value && std::holds_alternative<int64_t>(*value) ? std::get<int64_t>(*value) : fallback;
}

bool Op::mixes(DimId dim) const {
  return dim != CHASSIS_DIM_BATCH && (!mixed_dims || std::ranges::find(*mixed_dims, dim) != mixed_dims->end());
}

bool GraphValue::has(DimId dim) const { return std::ranges::find(dims, dim) != dims.end(); }

bool ParameterSlot::has(DimId dim) const {
  return std::ranges::any_of(axes, [&](const auto& axis) { return std::ranges::find(axis, dim) != axis.end(); });
}

bool BlockType::has_operand_with(const Op& op, DimId dim) const {
  const auto has = [&](ValueId v) { return v != kAbsent && values[v].has(dim); };
  return std::ranges::any_of(op.inputs, has) || std::ranges::any_of(op.outputs, has) ||
         std::ranges::any_of(op.params, [&](SlotId s) { return slots[s].has(dim); });
}

bool BlockType::needs_all_of(const Op& op, DimId dim) const {
  if (!has_operand_with(op, dim)) return false;
  const auto read = [&](ValueId v) { return v != kAbsent && values[v].has(dim); };
  const bool is_read = std::ranges::any_of(op.inputs, read) ||
                       std::ranges::any_of(op.params, [&](SlotId s) { return slots[s].has(dim); });
  return op.mixes(dim) || !is_read;
}

const Op* BlockType::op_over_positions() const {
  const auto found =
      std::ranges::find_if(ops, [&](const Op& op) { return op.is_own() && needs_all_of(op, CHASSIS_DIM_TIME); });
  return found == ops.end() ? nullptr : &*found;
}

ValueId BlockType::add_value(GraphValue value) {
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

SlotId BlockType::add_slot(ParameterSlot slot) {
  slots.push_back(std::move(slot));
  return static_cast<SlotId>(slots.size() - 1);
}

Dtype dtype_of(const GraphValue& value, Dtype compute) {
  return value.type == GraphValueType::kCompute ? compute
         : value.type == GraphValueType::kInt32 ? Dtype::i32
         : compute == Dtype::f64                ? Dtype::f64
                                                : Dtype::f32;
}

std::string Chain::prefix_of(size_t index) const {
  const size_t at = prefix.find("{i}");
  return at == std::string::npos ? prefix : prefix.substr(0, at) + std::to_string(index) + prefix.substr(at + 3);
}

std::string Chain::parameter_name(size_t index, const ParameterSlot& slot) const {
  const std::string head = prefix_of(index);
  return head.empty() ? slot.name : head + "." + slot.name;
}

BlockType* Program::last_block() { return chains.empty() ? nullptr : &blocks[chains.back().blocks.back()]; }

const BlockType* Program::last_block() const { return chains.empty() ? nullptr : &blocks[chains.back().blocks.back()]; }

std::optional<DimId> Program::find_dim(std::string_view name) const {
  for (size_t i = 0; i < dims.size(); ++i)
    if (dims[i].name == name) return static_cast<DimId>(i);
  return std::nullopt;
}

bool Program::is_logits(const GraphValue& value) const {
  return std::any_of(value.dims.begin(), value.dims.end(), [&](DimId dim) { return dims[dim].name == "vocab"; });
}

int64_t Program::dim_product(const std::vector<DimId>& ids) const {
  int64_t product = 1;
  for (DimId id : ids)
    if (__builtin_mul_overflow(product, dims[id].size, &product))
      throw config_error("dims " + dims_text(ids) + " multiply to more than 2^63");
  return product;
}

std::string Program::dims_text(const std::vector<DimId>& ids) const {
  std::string text = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    const GraphDim& dim = dims[ids[i]];
    text += (i ? ", " : "") + dim.name;
    if (dim.is_fixed() || dim.kind == DimKind::kBounded)
      text += (dim.is_fixed() ? "=" : "≤") + std::to_string(dim.size);
  }
  return text + "]";
}

std::string Program::field_text(const Field& field) const {
  return (field.type == GraphValueType::kInt32 ? "i32 " : "f32 ") + dims_text(field.dims);
}

bool is_given(const Program& program, const Field& field, const BatchFieldSpec& spec) {
  if ((field.type == GraphValueType::kInt32) != (spec.dtype == CHASSIS_DTYPE_I32)) return false;
  if (!std::ranges::equal(field.dims, spec.dims, {}, [&](DimId dim) { return program.dims[dim].name; })) return false;
  const auto is_bounded = [&](DimId dim) { return program.dims[dim].kind == DimKind::kBounded; };
  const size_t appended = entries_of(spec) == FieldEntries::kAppended ? 1 : 0;
  return std::ranges::all_of(std::span(field.dims).first(appended), is_bounded) &&
         std::ranges::none_of(std::span(field.dims).subspan(appended), is_bounded);
}

std::string field_text(const BatchFieldSpec& spec) {
  std::string text = spec.dtype == CHASSIS_DTYPE_I32 ? "i32 [" : "f32 [";
  for (size_t i = 0; i < spec.dims.size(); ++i) text += (i ? ", " : "") + std::string(spec.dims[i]);
  return text + "]";
}

std::string batch_fields_text() {
  std::vector<std::pair<std::string, std::string>> names_of;  // by type, in the order of the table
  for (const BatchFieldSpec& spec : batch_fields()) {
    const std::string type = field_text(spec);
    auto known = std::ranges::find(names_of, type, &std::pair<std::string, std::string>::first);
    if (known == names_of.end()) known = names_of.emplace(known, type, "");
    known->second += (known->second.empty() ? "" : ", ") + std::string(spec.name);
  }
  std::string text;
  for (const auto& [type, names] : names_of) text += (text.empty() ? "" : "; ") + names + ", each " + type;
  return text;
}

std::vector<int64_t> Program::global_shape(const ParameterSlot& slot) const {
  std::vector<int64_t> shape;
  for (const auto& axis : slot.axes) shape.push_back(dim_product(axis));
  return shape;
}

size_t Program::num_units() const {
  size_t count = 0;
  for (const Chain& chain : chains) count += chain.blocks.size();
  return count;
}

std::vector<std::string> Program::unit_names() const {
  std::vector<std::string> names;
  for (const Chain& chain : chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i)
      names.push_back(chain.blocks.size() > 1 ? chain.name + "." + std::to_string(i) : chain.name);
  return names;
}

std::string mixed_dims_text(const Program& program, const Op& op) {
  if (!op.mixed_dims) return "mixes all dims, since it declares none";
  if (op.mixed_dims->empty()) return "mixes no dim";
  std::string text;
  for (size_t i = 0; i < op.mixed_dims->size(); ++i)
    text += (i == 0                           ? "mixes "
             : i + 1 == op.mixed_dims->size() ? " and "
                                              : ", ") +
            program.dims[(*op.mixed_dims)[i]].name;
  return text;
}

}  // namespace chassis
