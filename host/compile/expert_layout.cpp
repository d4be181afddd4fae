// An axis that divides rows and named dims: each rank has its part of the parameters with such a dim, whole parameters
// without one, and rows of its own. Values are whole on every rank.
#include <utility>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/compile/block_layout.hpp"

namespace chassis {
namespace {

class ExpertLayout final : public BlockLayout {
 public:
  ExpertLayout(BlockType& block, const AppliedAxis& axis) : BlockLayout(block, axis) {}

 private:
  bool divides_inputs() const override { return false; }
  bool may_share(DimId) const override { return false; }

  void place(Op op) override {
    for (const SlotId id : op.params)
      if (const ParameterSlot& slot = block_.slots[id]; slot.sharding[axis_].kind == Sharding::Kind::kShard)
        refuse_exchange(op, slot);
    append(std::move(op), {});
  }

  // The only place that forbids an op to read a part of a parameter here. Ops that exchange rows, which dispatch them
  // to the ranks with the experts and combine the results, will be allowed here.
  [[noreturn]] void refuse_exchange(const Op& op, const ParameterSlot& slot) const {
    const std::string axis = strategy_.axis(), dim = program_.dims[slot.sharding[axis_].dim].name;
    throw Error(ExitCode::kConfig, division_.where,
                (division_.strategy.empty() ? "axis '" : division_.strategy + " along axis '") + axis +
                    "' cannot divide '" + dim + "' of block '" + block_.name + "': op " + op.id.text() + " '" +
                    op.name + "' reads parameter '" + slot.name +
                    "', of which each rank would have a part, but ranks along '" + axis +
                    "' have different rows, and no op exchanges rows yet")
        .hint("set " + mesh_key(axis) + " = 1, or leave '" + dim + "' undivided");
  }
};

}  // namespace

std::unique_ptr<BlockLayout> expert_layout(BlockType& block, const AppliedAxis& axis) {
  return std::make_unique<ExpertLayout>(block, axis);
}

}  // namespace chassis
