// Walks one block for one axis of the mesh, derives placements from the slots' dims, and rebuilds the block's list of
// ops with collectives. Steps of the layout pass (layout.hpp) that axes of both kinds share; the others are
// tensor_layout.cpp and context_layout.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/program/layout.hpp"
#include "host/program/program.hpp"

namespace chassis {

// An axis that is applied to a program.
struct AppliedAxis {
  const Program& program;
  const LayoutStrategy& strategy;
  const Division& division;
  bool is_zigzag;
  const std::vector<LayoutAxis>& before;  // those that were applied before

  bool divides_context() const { return division.context != ContextMode::kNone; }
};

class BlockLayout {
 public:
  virtual ~BlockLayout() = default;
  void run();
  // Linears of adapters that are in no ring, though the axis asks for rings.
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

  // Whether each rank has some of the positions of the block's inputs.
  virtual bool divides_inputs() const = 0;
  // Ranks may share a part of a dim that has fewer parts than there are ranks.
  virtual bool may_share(DimId dim) const = 0;
  // Before the first op.
  virtual void prepare() {}
  // Appends the op, and the collectives that it needs.
  virtual void place(Op op) = 0;

  [[noreturn]] void refuse(const Op& op, const std::string& why) const { throw refusal(op, why); }
  Error refusal(const Op& op, const std::string& why) const;
  // `of`: whose dim it is, if that must be said.
  Error indivisible(DimId dim, const std::string& of = "") const;

  Sharding& of(ValueId value) { return block_.values[value].sharding[axis_]; }
  bool divides(DimId dim) const { return division_.dims.contains(program_.dims[dim].name); }
  bool pads(DimId dim) const { return division_.dims.find(program_.dims[dim].name)->second; }
  void mark_partial(Slot& slot) const;
  // The dim has fewer parts than the axis has ranks: equal numbers of neighbours share a part.
  bool is_shared(DimId dim) const;
  // This rank's indices of a divided dim: the first, and how many are not padding.
  std::pair<int64_t, int64_t> part_of(DimId dim) const;
  // The value in the wanted placement, converted once and reused.
  ValueId converted(ValueId value, Sharding wanted);
  ValueId insert(CommOp collective, ValueId value, Sharding placed, DimId moved, int64_t pad = 0);
  void append(Op op, Sharding result);
  // For plugins' own ops, which compute the same on every rank: all of a value, and a rank's part of it.
  ValueId whole(ValueId value);
  ValueId part(ValueId value, DimId dim);
  int64_t padding_of(ValueId ids) const;
  std::string mixing(const Op& op, DimId dim) const;  // "mixes 'ffn'"
  // Ids are replicated, so a rank takes its part of them without communication.
  ValueId slice_time(ValueId ids, int64_t pad = 0);
  Op renamed(Op op) const;
  // The op computes some positions of a row.
  void mark_query_part(Op& op) const;
  // The bits of an element depend on its position and its place there, so a rank that has some of them says which.
  void place_random_bits(Op& op) const;

  const Program& program_;
  BlockType& block_;
  const LayoutStrategy& strategy_;
  const Division& division_;
  const bool is_zigzag_;
  const std::vector<LayoutAxis>& axes_before_;
  const size_t axis_;
  std::vector<Op> recorded_;
  size_t at_ = 0;                   // the op that is placed
  std::vector<uint8_t> is_placed_;  // by recorded op: with one before it
  std::map<ValueId, ValueId> renamed_;

 private:
  [[noreturn]] void refuse_random_bits(const Op& op) const;
  void place_slot(Slot& slot);
  // By a plugin's own op that mixes the dim.
  bool is_read_whole(const Slot& slot, DimId dim) const;
  void finish_output(const std::string& name, ValueId& value);

  std::map<std::pair<ValueId, std::pair<Sharding::Kind, DimId>>, ValueId> converted_;
  std::map<std::pair<ValueId, int64_t>, ValueId> sliced_;  // by value and padding
  std::map<ValueId, ValueId> whole_;
  std::map<std::pair<ValueId, DimId>, ValueId> parts_;
};

// For an axis that divides named dims, and one that divides positions. What they refer to must outlive them.
std::unique_ptr<BlockLayout> tensor_layout(BlockType& block, const AppliedAxis& axis);
std::unique_ptr<BlockLayout> context_layout(BlockType& block, const AppliedAxis& axis);

}  // namespace chassis
