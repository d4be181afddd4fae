// Ops lie in the order in which a forward should start them; backward runs the same list in reverse.
#include "host/compile/ring_layout.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace chassis {

void RingLayout::gather(ValueId x, std::span<const Op> linears) {
  std::vector<ValueId> wholes(linears.size(), kAbsent);
  for (int64_t step = 0; step < size_; ++step) {
    const bool is_last = step + 1 == size_;
    ValueId next = kAbsent;
    if (!is_last) {
      next = add_value(x, block_.values[x].sharding[index_], step + 1);
      append(CommOp::kShift, {x}, next);
    }
    std::vector<ValueId> chunks;  // side by side, for providers that join products
    for (const Op& linear : linears) chunks.push_back(product(linear, x, step));
    for (size_t i = 0; i < linears.size(); ++i) {
      const ValueId output = linears[i].outputs[0];
      const ValueId whole = is_last ? output : add_value(output, block_.values[output].sharding[index_], step);
      append_part(CommOp::kPut, {chunks[i], wholes[i]}, whole, part_before(step));
      wholes[i] = whole;
    }
    x = next;
  }
}

void RingLayout::scatter(const Op& linear) {
  const ValueId output = linear.outputs[0], input = linear.inputs[0];
  ValueId sum = kAbsent;
  for (int64_t step = 0; step < size_; ++step) {
    ValueId arriving = kAbsent;
    if (step > 0) {
      arriving = add_value(sum, {Sharding::Kind::kPartial, 0, true}, step);
      append(CommOp::kShift, {sum}, arriving);
    }
    Sharding placed = block_.values[input].sharding[index_];
    placed.is_chunk = true;
    const ValueId chunk = add_value(input, placed, step);
    append_part(CommOp::kChunk, {input}, chunk, part_before(step + 1));
    const ValueId own = product(linear, chunk, step);
    block_.values[own].sharding[index_] = {Sharding::Kind::kPartial, 0, true};
    if (step == 0) {
      sum = own;
      continue;
    }
    sum = step + 1 == size_ ? output : add_value(output, {Sharding::Kind::kPartial, 0, true}, step);
    append(CommOp::kSum, {arriving, own}, sum);
  }
}

ValueId RingLayout::add_value(ValueId like, Sharding placed, int64_t step) {
  GraphValue value = block_.values[like];
  value.name += "." + std::to_string(step);
  value.sharding[index_] = placed;
  return block_.add_value(std::move(value));
}

ValueId RingLayout::product(const Op& linear, ValueId input, int64_t step) {
  Sharding placed = block_.values[linear.outputs[0]].sharding[index_];
  placed.is_chunk = true;
  Op op = linear;
  op.name += "." + std::to_string(step);
  op.inputs[0] = input;
  op.outputs = {add_value(linear.outputs[0], placed, step)};
  op.attrs.emplace_back(kNumChunks, size_);
  block_.ops.push_back(std::move(op));
  return block_.ops.back().outputs[0];
}

Op& RingLayout::append(CommOp id, std::vector<ValueId> inputs, ValueId output) {
  Op op;
  op.id = OpId(id);
  op.name = name_ + "." + block_.values[output].name;
  op.attrs.emplace_back("axis", name_);
  op.inputs = std::move(inputs);
  op.outputs = {output};
  block_.ops.push_back(std::move(op));
  return block_.ops.back();
}

void RingLayout::append_part(CommOp id, std::vector<ValueId> inputs, ValueId output, int64_t part) {
  Op& op = append(id, std::move(inputs), output);
  const std::vector<DimId>& dims = block_.values[output].dims;
  op.attrs.emplace_back("dim", std::find(dims.begin(), dims.end(), CHASSIS_DIM_TIME) - dims.begin());
  op.attrs.emplace_back("part", part);
}

}  // namespace chassis
