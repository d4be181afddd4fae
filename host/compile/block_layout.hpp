// Walks one block for one axis of the mesh, derives placements from the slots' dims, and rebuilds the block's list of
// ops with collectives. Holds the steps of the layout pass (layout.hpp) that axes of all kinds share; the others are in
// tensor_layout.cpp, context_layout.cpp and expert_layout.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// An axis that is applied to a program.
struct AppliedAxis {
  const Program& program;
  const LayoutStrategy& strategy;
  const Division& division;
  bool is_zigzag;
  const std::vector<LayoutAxis>& before;  // axes that were applied before this one

  bool divides_context() const { return division.context != ContextMode::kNone; }
};

class BlockLayout {
 public:
  virtual ~BlockLayout() = default;
  void run();
  // The number of adapters' linears that have no ring, although the axis asks for rings.
  virtual size_t adapter_linears_without_ring() const { return 0; }

 protected:
  BlockLayout(BlockType& block, const AppliedAxis& axis)
      : program_(axis.program),
        block_(block),
        strategy_(axis.strategy),
        division_(axis.division),
        is_zigzag_(axis.is_zigzag),
        axes_before_(axis.before),
        axis_(axis.before.size()) {}

  // True if each rank has some of the positions of the block's inputs.
  virtual bool divides_inputs() const = 0;
  // True if ranks may share a part of a dim that has fewer parts than there are ranks.
  virtual bool may_share(DimId dim) const = 0;
  // Called before the first op.
  virtual void prepare() {}
  // Appends the op, and the collectives that it needs.
  virtual void place(Op op) = 0;

  [[noreturn]] void refuse(const Op& op, const std::string& why) const { throw refusal(op, why); }
  Error refusal(const Op& op, const std::string& why) const;
  // `of` names the owner of the dim where the message needs it.
  Error indivisible(DimId dim, const std::string& of = "") const;

  Sharding& of(ValueId value) { return block_.values[value].sharding[axis_]; }
  bool divides(DimId dim) const { return division_.dims.contains(program_.dims[dim].name); }
  bool pads(DimId dim) const { return division_.dims.find(program_.dims[dim].name)->second; }
  void mark_partial(ParameterSlot& slot) const;
  // True if the dim has fewer parts than the axis has ranks: equal numbers of neighbours share a part.
  bool is_shared(DimId dim) const;
  // This rank's indices of a divided dim: the first index, and the number that are not padding.
  std::pair<int64_t, int64_t> part_of(DimId dim) const;
  // Returns the value in the wanted placement, converted once and reused.
  ValueId converted(ValueId value, Sharding wanted);
  ValueId insert(CommOp collective, ValueId value, Sharding placed, DimId moved, int64_t pad = 0);
  void append(Op op, Sharding result);
  // Sums over positions, which ranks add up where each has some of them.
  void append_row_sums(Op op, bool divides_positions);
  // For plugins' own ops that compute the same on every rank: all of a value, and a rank's part of it.
  ValueId whole(ValueId value);
  ValueId part(ValueId value, DimId dim);
  int64_t padding_of(ValueId ids) const;
  std::string mixing(const Op& op, DimId dim) const;  // "mixes 'ffn'"
  // Takes this rank's part of ids. They are replicated, so this needs no communication.
  ValueId slice_time(ValueId ids, int64_t pad = 0);
  Op renamed(Op op) const;
  // Marks an op that computes only some positions of a row.
  void mark_query_part(Op& op) const;
  // An element's bits depend on its position and its place within it, so the op must record which ones the rank has.
  void place_random_bits(Op& op) const;

  const Program& program_;
  BlockType& block_;
  const LayoutStrategy& strategy_;
  const Division& division_;
  const bool is_zigzag_;
  const std::vector<LayoutAxis>& axes_before_;
  const size_t axis_;
  std::vector<Op> recorded_;
  size_t at_ = 0;                   // index of the op that is being placed
  std::vector<uint8_t> is_placed_;  // by recorded op: 1 if it was placed along with an earlier one
  std::map<ValueId, ValueId> renamed_;

 private:
  [[noreturn]] void refuse_random_bits(const Op& op) const;
  void place_slot(ParameterSlot& slot);
  // True if a plugin's own op that mixes the dim reads the slot. Throws if another op reads only a part of it.
  bool is_read_whole(const ParameterSlot& slot, DimId dim) const;
  void finish_output(const std::string& name, ValueId& value);

  std::map<std::pair<ValueId, std::pair<Sharding::Kind, DimId>>, ValueId> converted_;
  std::map<std::pair<ValueId, int64_t>, ValueId> sliced_;  // by value and padding
  std::map<ValueId, ValueId> whole_;
  std::map<std::pair<ValueId, DimId>, ValueId> parts_;
};

// For an axis that divides named dims, for one that divides positions, and for one that divides rows and named dims.
// The arguments must outlive the result.
std::unique_ptr<BlockLayout> tensor_layout(BlockType& block, const AppliedAxis& axis);
std::unique_ptr<BlockLayout> context_layout(BlockType& block, const AppliedAxis& axis);
std::unique_ptr<BlockLayout> expert_layout(BlockType& block, const AppliedAxis& axis);

}  // namespace chassis
