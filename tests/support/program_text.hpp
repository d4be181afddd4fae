// A program as text, to compare it before and after a pass.
#pragma once

#include <string>

#include "host/graph/program.hpp"

namespace chassis::test {

inline std::string program_text(const Program& program) {
  std::string text;
  auto number = [](uint32_t id) { return id == kAbsent ? std::string("-") : std::to_string(id); };
  auto sharding = [](const std::vector<Sharding>& axes) {
    std::string out;
    for (const Sharding& s : axes)
      out += s.kind == Sharding::Kind::kShard     ? " shard " + std::to_string(s.dim)
             : s.kind == Sharding::Kind::kPartial ? " partial"
                                                  : " replicate";
    return out;
  };
  for (const GraphDim& dim : program.dims) text += "dim " + dim.name + " " + std::to_string(dim.size) + "\n";
  for (const BlockType& block : program.blocks) {
    text += "block " + block.name + "\n";
    for (const GraphValue& value : block.values)
      text += "  value " + value.name + " " + program.dims_text(value.dims) + sharding(value.sharding) + "\n";
    for (const ParameterSlot& slot : block.slots) {
      text += "  slot " + slot.name + " tied '" + slot.tied_to + "' storage '" + slot.storage + "'" +
              sharding(slot.sharding);
      for (const auto& axis : slot.axes) text += " " + program.dims_text(axis);
      text += "\n";
    }
    for (const Op& op : block.ops) {
      text += "  op " + op.id.text() + " " + op.name + " (";
      for (ValueId v : op.inputs) text += " " + number(v);
      text += " |";
      for (SlotId s : op.params) text += " " + number(s);
      text += " ) ->";
      for (ValueId v : op.outputs) text += " " + number(v);
      for (const auto& [name, value] : op.attrs) text += " " + name;
      text += "\n";
    }
    for (const auto& [name, value] : block.inputs) text += "  in " + name + " " + number(value) + "\n";
    for (const auto& [name, value] : block.fields) text += "  field " + name + " " + number(value) + "\n";
    for (const auto& [name, value] : block.outputs) text += "  out " + name + " " + number(value) + "\n";
  }
  for (const Chain& chain : program.chains)
    text += "chain " + chain.name + " '" + chain.prefix + "' x " + std::to_string(chain.blocks.size()) + "\n";
  return text;
}

}  // namespace chassis::test
