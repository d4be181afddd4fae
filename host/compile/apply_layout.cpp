// Applies the axes one after another to every block.
#include "host/compile/apply_layout.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "host/base/mesh_axes.hpp"
#include "host/compile/block_layout.hpp"
#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

// Under a causal mask, later queries have more work, so ranks need a zigzag. If ranks have all positions of some heads,
// they have equal work.
bool divides_in_zigzag(const Program& program, const Division& division) {
  if (division.context != ContextMode::kGather) return division.context == ContextMode::kRing;
  return std::ranges::any_of(program.blocks, [](const BlockType& block) {
    return std::ranges::any_of(block.ops,
                               [](const Op& op) { return op.spec().is_attention() && op.attr_int("causal", 0) != 0; });
  });
}

std::unique_ptr<BlockLayout> layout_of(BlockType& block, const AppliedAxis& axis) {
  if (axis.divides_context()) return context_layout(block, axis);
  return divides_rows(axis.strategy.axis()) ? expert_layout(block, axis) : tensor_layout(block, axis);
}

}  // namespace

ProgramLayout apply_layout(Program& program, std::span<const LayoutStrategy* const> stack) {
  ProgramLayout layout;
  for (const LayoutStrategy* strategy : stack) {
    const Division division = strategy->divide(program);
    if (!division.divides_any()) continue;
    const bool is_zigzag = divides_in_zigzag(program, division);
    const AppliedAxis applied{program, *strategy, division, is_zigzag, layout.axes};
    LayoutAxis axis{strategy->axis(), strategy->axis_size(), strategy->coordinate(), division.where, is_zigzag};
    for (BlockType& block : program.blocks) {
      const auto pass = layout_of(block, applied);
      pass->run();
      axis.adapter_linears_without_ring += pass->adapter_linears_without_ring();
    }
    layout.axes.push_back(std::move(axis));
  }
  return layout;
}

}  // namespace chassis
