// Each value and slot is listed once as an operand; ops refer to operands by index.
#include "host/compile/node_description.hpp"

#include "host/compile/layout_pass.hpp"
#include "host/compile/quant_plugin.hpp"

namespace chassis {

NodeDescription::NodeDescription(const Program& program, const ProgramLayout& layout, const BlockType& block,
                                 const Node& node, std::span<const uint8_t> value_needs_grad,
                                 std::span<const uint8_t> slot_trainable, const ResolveOptions& options)
    : program_(program),
      layout_(layout),
      block_(block),
      value_needs_grad_(value_needs_grad),
      slot_trainable_(slot_trainable),
      options_(options),
      value_index_(block.values.size(), kAbsent),
      slot_index_(block.slots.size(), kAbsent) {
  for (uint32_t index : node.ops) {
    const Op& op = block.ops[index];
    chassis_op_view_t view{};
    view.struct_size = sizeof(view);
    view.id = keep(op.id.text());
    const auto& attrs = attrs_of(op);
    view.attrs = attrs.data();
    view.num_attrs = static_cast<uint32_t>(attrs.size());
    std::vector<uint32_t> inputs, params, outputs;
    for (ValueId v : op.inputs) inputs.push_back(v == kAbsent ? kAbsent : value_operand(v));
    for (SlotId s : op.params) params.push_back(slot_operand(s));
    for (ValueId v : op.outputs) outputs.push_back(value_operand(v));
    view.num_inputs = static_cast<uint32_t>(inputs.size());
    view.num_params = static_cast<uint32_t>(params.size());
    view.num_outputs = static_cast<uint32_t>(outputs.size());
    view.inputs = keep(std::move(inputs));
    view.params = keep(std::move(params));
    view.outputs = keep(std::move(outputs));
    ops_.push_back(&op_store_.emplace_back(view));
  }
  std::vector<uint32_t> inputs, params, outputs;
  for (ValueId v : node.inputs) inputs.push_back(v == kAbsent ? kAbsent : value_operand(v));
  for (SlotId s : node.params) params.push_back(slot_operand(s));
  for (ValueId v : node.outputs) outputs.push_back(value_operand(v));

  node_.struct_size = sizeof(node_);
  node_.flags = options.purpose == Purpose::kTraining ? CHASSIS_NODE_TRAINING : 0;
  node_.name = keep(node.name);
  node_.device_type = static_cast<uint32_t>(options.device.type);
  node_.device_index = options.device.index;
  node_.num_inputs = static_cast<uint32_t>(inputs.size());
  node_.num_params = static_cast<uint32_t>(params.size());
  node_.num_outputs = static_cast<uint32_t>(outputs.size());
  node_.inputs = keep(std::move(inputs));
  node_.params = keep(std::move(params));
  node_.outputs = keep(std::move(outputs));
  node_.num_operands = static_cast<uint32_t>(operands_.size());
  node_.operands = operands_.data();
  node_.num_ops = static_cast<uint32_t>(ops_.size());
  node_.ops = ops_.data();
}

uint32_t NodeDescription::value_operand(ValueId id) {
  if (value_index_[id] != kAbsent) return value_index_[id];
  const GraphValue& value = block_.values[id];
  std::vector<std::string> dims;
  for (DimId d : value.dims) dims.push_back(program_.dims[d].name);
  return value_index_[id] = add_operand(layout_.local_shape(program_, value, options_.planned(program_)),
                                        std::move(dims), dtype_of(value, options_.compute), value_needs_grad_[id] != 0);
}

uint32_t NodeDescription::slot_operand(SlotId id) {
  if (slot_index_[id] != kAbsent) return slot_index_[id];
  const ParameterSlot& slot = block_.slots[id];
  std::vector<std::string> dims;
  for (const auto& axis : slot.axes) {
    std::string name;
    for (DimId d : axis) name += (name.empty() ? "" : "*") + program_.dims[d].name;
    dims.push_back(name);
  }
  const std::vector<int64_t> local = layout_.local_shape(program_, slot);
  slot_index_[id] = add_operand(local, std::move(dims), options_.compute, slot_trainable_[id] != 0);
  if (slot.components) {
    chassis_operand_t& operand = operand_store_.back();
    operand.num_components = slot.components->components().size();
    operand.components = slot.components->raw_components();
    const std::vector<int64_t>& whole = shapes_.emplace_back(program_.global_shape(slot));
    if (whole != local) {
      operand.whole_shape = whole.data();
      operand.begin = shapes_.emplace_back(layout_.begin(program_, slot)).data();
    }
  }
  return slot_index_[id];
}

uint32_t NodeDescription::add_operand(std::vector<int64_t> shape, std::vector<std::string> dims, Dtype dtype,
                                      bool needs_grad) {
  chassis_operand_t operand{};
  operand.struct_size = sizeof(operand);
  operand.dtype = static_cast<uint32_t>(dtype);
  operand.num_dims = static_cast<uint32_t>(shape.size());
  operand.needs_grad = needs_grad;
  operand.local_shape = shapes_.emplace_back(std::move(shape)).data();
  auto& names = names_.emplace_back();
  for (std::string& dim : dims) names.push_back(keep(std::move(dim)));
  operand.dims = names.data();
  operands_.push_back(&operand_store_.emplace_back(operand));
  return static_cast<uint32_t>(operands_.size() - 1);
}

// Attributes as recorded, and the scheme of a quantized parameter as attribute "storage".
const std::vector<chassis_attr_t>& NodeDescription::attrs_of(const Op& op) {
  auto& attrs = attrs_.emplace_back();
  for (const auto& [name, value] : op.attrs) {
    if (name.starts_with(kCommPrefix)) continue;
    chassis_attr_t attr{};
    attr.name = keep(name);
    if (auto* i = std::get_if<int64_t>(&value)) attr.tag = CHASSIS_ATTR_INT, attr.value.i = *i;
    if (auto* f = std::get_if<double>(&value)) attr.tag = CHASSIS_ATTR_FLOAT, attr.value.f = *f;
    if (auto* s = std::get_if<std::string>(&value))
      attr.tag = CHASSIS_ATTR_STRING, attr.value.list.ptr = s->data(), attr.value.list.len = s->size();
    if (auto* l = std::get_if<std::vector<int64_t>>(&value))
      attr.tag = CHASSIS_ATTR_INT_LIST, attr.value.list.ptr = l->data(), attr.value.list.len = l->size();
    if (auto* l = std::get_if<std::vector<double>>(&value))
      attr.tag = CHASSIS_ATTR_FLOAT_LIST, attr.value.list.ptr = l->data(), attr.value.list.len = l->size();
    attrs.push_back(attr);
  }
  if (!op.params.empty() && !block_.slots[op.params[0]].storage.empty()) {
    const std::string& scheme = block_.slots[op.params[0]].storage;
    chassis_attr_t storage{};
    storage.name = keep("storage");
    storage.tag = CHASSIS_ATTR_STRING;
    storage.value.list.ptr = scheme.data();
    storage.value.list.len = scheme.size();
    attrs.push_back(storage);
  }
  return attrs;
}

const uint32_t* NodeDescription::keep(std::vector<uint32_t> indexes) {
  return indexes_.emplace_back(std::move(indexes)).data();
}

chassis_str_t NodeDescription::keep(std::string text) {
  const std::string& kept = texts_.emplace_back(std::move(text));
  return {kept.data(), kept.size()};
}

}  // namespace chassis
