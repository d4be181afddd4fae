// The layout pass: the parallel stack decides which dims each mesh axis divides. The pass derives the placement of
// every slot and value, and inserts the collectives that keep the program's results. With an empty stack it changes
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/program/program.hpp"

namespace chassis {

// One member of the parallel stack that divides the computation itself (tensor and sequence parallelism). Strategies
// that only divide storage (FSDP, ZeRO) leave values alone: they act on unit events and shard descriptors.
class LayoutStrategy {
 public:
  virtual ~LayoutStrategy() = default;
  virtual std::string axis() const = 0;
  virtual int64_t axis_size() const = 0;
  // Whether slots and values that carry this dim are split along it, and whether an uneven split is padded.
  virtual bool divides(std::string_view dim) const = 0;
  virtual bool pads(std::string_view dim) const = 0;
  // Between the divided regions, values are split along T (Korthikanti et al. 2022).
  virtual bool sequence_parallel() const = 0;
};

struct LayoutAxis {
  std::string name;
  int64_t size = 1;
};

struct ProgramLayout {
  std::vector<LayoutAxis> axes;

  // Sizes on one rank; `batch` and `time` are B and T before any split.
  std::vector<int64_t> local_shape(const Program& program, const GraphValue& value, int64_t batch, int64_t time) const;
  std::vector<int64_t> local_shape(const Program& program, const Slot& slot) const;
};

// Collectives are ops with attributes axis (name) and, for gather and scatter, dim (index in the value):
//   comm.copy ↔ comm.all_reduce, comm.all_gather ↔ comm.reduce_scatter: each is the other's backward.
inline constexpr std::string_view kCommPrefix = "comm.";
inline bool is_collective(const Op& op) { return op.id.starts_with(kCommPrefix); }
std::string dual_of(std::string_view collective);

// Throws a config error if a dim cannot be divided, or if an op has no meaning for the placements of its operands.
ProgramLayout apply_layout(Program& program, std::span<const LayoutStrategy* const> stack);

}  // namespace chassis
