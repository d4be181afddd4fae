// The layout pass: the parallel stack decides which dims each mesh axis divides. The pass derives the placement of
// every slot and value, and inserts the collectives that keep the program's results. With an empty stack it changes
// nothing.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/graph/collective_ops.hpp"
#include "host/graph/dim_sizes.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// How attention sees positions that other ranks have.
enum class ContextMode { kNone, kAllToAll, kGather, kRing };

struct Division {
  SourcePosition where = {};  // position of the strategy, for errors
  // Slots and values that carry one of these dims are split along it. True: an uneven split is padded.
  std::map<std::string, bool, std::less<>> dims = {};
  // Between the divided regions, values are split along T (Korthikanti et al. 2022).
  bool sequence_parallel = false;
  // The gathers and scatters of sequence_parallel next to products are rings; see ring_layout.hpp.
  bool overlaps_in_ring = false;
  // If not kNone, every value is split along T, and no slot is (Jacobs et al. 2023; Llama Team 2024).
  ContextMode context = ContextMode::kNone;
  std::string strategy = {};  // "parallel 'tensor'", for errors

  bool divides_any() const { return !dims.empty() || sequence_parallel || context != ContextMode::kNone; }
};

// One axis of the mesh that divides the computation itself (tensor, sequence, context and expert parallelism).
// Strategies that only divide storage (FSDP, ZeRO) leave values alone: they act on unit events and shard descriptors.
class LayoutStrategy {
 public:
  virtual ~LayoutStrategy() = default;
  virtual std::string axis() const = 0;
  virtual int64_t axis_size() const = 0;
  virtual int64_t coordinate() const { return 0; }  // this rank's
  virtual Division divide(const Program& program) const = 0;
};

struct LayoutAxis {
  std::string name;
  int64_t size = 1;
  int64_t coordinate = 0;     // this rank's
  SourcePosition where = {};  // position of its strategy, for errors
  // Each rank has two pieces of the positions: rank r of N has pieces r and 2N - 1 - r of 2N.
  bool is_zigzag = false;
  size_t adapter_linears_without_ring = 0;
};
// The first position of piece 0 or 1 of a rank's zigzag, if a piece has `length` positions.
inline int64_t zigzag_begin(int64_t rank, int64_t num_ranks, int64_t piece, int64_t length) {
  return (piece == 0 ? rank : 2 * num_ranks - 1 - rank) * length;
}

struct ProgramLayout {
  std::vector<LayoutAxis> axes;

  // The size of a dim on one rank, padding included. A layout without axes gives the whole size, for names and whole
  // shapes of a divided program.
  int64_t local_size(const std::vector<Sharding>& sharding, DimId dim, int64_t size) const;
  // Sizes on one rank.
  std::vector<int64_t> local_shape(const Program& program, const GraphValue& value, const DimSizes& sizes) const;
  std::vector<int64_t> local_shape(const Program& program, const ParameterSlot& slot) const;
  // The layout with the sizes of one of the two pieces of a row that a rank of a zigzag axis has.
  ProgramLayout of_piece(std::string_view axis) const;
  const LayoutAxis& axis(std::string_view name) const;
  // The offset of this rank's part of a slot in each dim.
  std::vector<int64_t> begin(const Program& program, const ParameterSlot& slot) const;
};

}  // namespace chassis
