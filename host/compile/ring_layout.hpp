// Products whose input is gathered from the ranks of an axis, or whose output is scattered to them, in as many chunks
// of positions as there are ranks: one travels while another is multiplied (Wang et al. 2023, "Overlap Communication
// with Dependent Computation via Decomposition"). Only writes ops; the layout pass chooses the linears.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "host/compile/layout_pass.hpp"
#include "host/graph/program.hpp"

namespace chassis {

class RingLayout {
 public:
  // `index` is that of the axis in the layout.
  RingLayout(BlockType& block, const LayoutStrategy& axis, size_t index)
      : block_(block), name_(axis.axis()), size_(axis.axis_size()), coordinate_(axis.coordinate()), index_(index) {}

  // For linears that read `x`, which is divided along T; each gives all positions. In step k, this rank has the chunk
  // of the k-th rank before it.
  void gather(ValueId x, std::span<const Op> linears);
  // For a linear that gives partial sums; its output is their sum, divided along T. The sum for a rank begins at the
  // next rank, and in step k this rank adds its part to the sum for the rank k + 1 before it.
  void scatter(const Op& linear);

 private:
  int64_t part_before(int64_t steps) const { return (coordinate_ - steps + 2 * size_) % size_; }
  ValueId add_value(ValueId like, Sharding placed, int64_t step);
  ValueId product(const Op& linear, ValueId input, int64_t step);
  Op& append(CommOp id, std::vector<ValueId> inputs, ValueId output);
  void append_part(CommOp id, std::vector<ValueId> inputs, ValueId output, int64_t part);

  BlockType& block_;
  const std::string name_;
  const int64_t size_, coordinate_;
  const size_t index_;
};

}  // namespace chassis
