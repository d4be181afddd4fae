// Edits of op lists, and the check after each rewrite.
#include "host/graph/rewrite.hpp"

#include <algorithm>
#include <iterator>

#include "host/base/error.hpp"
#include "host/graph/op_table.hpp"

namespace chassis {

Op make_op(const Program& program, BlockType& block, std::string id, std::string name, std::vector<ValueId> inputs,
           std::vector<SlotId> params, const std::vector<DimId>& output_dims) {
  Op op;
  op.id = OpId(std::move(id));
  op.name = std::move(name);
  op.inputs = std::move(inputs);
  op.params = std::move(params);
  infer_outputs(program, block, op, output_dims);
  return op;
}

void insert_after(BlockType& block, size_t op_index, std::vector<Op> ops) {
  CHASSIS_CHECK(op_index < block.ops.size(), "no op " + std::to_string(op_index) + " in block '" + block.name + "'");
  block.ops.insert(block.ops.begin() + static_cast<std::ptrdiff_t>(op_index) + 1, std::make_move_iterator(ops.begin()),
                   std::make_move_iterator(ops.end()));
}

void replace_uses(BlockType& block, ValueId from, ValueId to, size_t first_op) {
  CHASSIS_CHECK(block.values[from].dims == block.values[to].dims,
                "a use can only be replaced by a value of the same dims");
  for (size_t i = first_op; i < block.ops.size(); ++i)
    std::replace(block.ops[i].inputs.begin(), block.ops[i].inputs.end(), from, to);
  for (auto& [name, value] : block.outputs)
    if (value == from) value = to;
}

void drop_dead_ops(BlockType& block) {
  std::vector<uint8_t> needed(block.values.size());
  for (const auto& [name, value] : block.outputs) needed[value] = 1;
  std::vector<Op> live;
  for (auto op = block.ops.rbegin(); op != block.ops.rend(); ++op) {
    if (std::none_of(op->outputs.begin(), op->outputs.end(), [&](ValueId v) { return needed[v]; })) continue;
    for (ValueId v : op->inputs)
      if (v != kAbsent) needed[v] = 1;
    live.push_back(std::move(*op));
  }
  block.ops.assign(std::make_move_iterator(live.rbegin()), std::make_move_iterator(live.rend()));
  std::erase_if(block.fields, [&](const auto& field) { return !needed[field.second]; });
}

void check_rewritten(const Program& program, const std::string& pass) {
  for (const BlockType& block : program.blocks) {
    std::vector<uint8_t> made(block.values.size());
    for (const auto* given : {&block.inputs, &block.fields})
      for (const auto& [name, value] : *given) made[value] = 1;
    const auto refuse = [&](const std::string& what) {
      return internal_error(pass + " leaves block '" + block.name + "' with " + what);
    };
    for (const Op& op : block.ops) {
      for (ValueId v : op.inputs)
        if (v != kAbsent && (v >= made.size() || !made[v]))
          throw refuse(op.id.text() + " '" + op.name + "', which reads value " + std::to_string(v) +
                       " before it is made");
      for (SlotId s : op.params)
        if (s >= block.slots.size())
          throw refuse(op.id.text() + " '" + op.name + "', which reads parameter " + std::to_string(s) + " of " +
                       std::to_string(block.slots.size()));
      for (ValueId v : op.outputs) made.at(v) = 1;
    }
    for (const auto& [name, value] : block.outputs)
      if (value >= made.size() || !made[value]) throw refuse("the output '" + name + "', which nothing makes");
  }
}

}  // namespace chassis
