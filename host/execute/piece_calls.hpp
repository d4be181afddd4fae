// The two calls of an op for which a rank has two pieces of every row (kPieces): one for each piece. Under a causal
// mask a call gets no keys after its last query. A rank has one piece near the start of a row and one near its end, so
// that all ranks do equal work.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "host/compile/row_pieces.hpp"
#include "host/execute/run_context.hpp"

namespace chassis {

class PieceCalls {
 public:
  PieceCalls(const ResolvedBlock& block, const Node& node, const RunContext& context);
  PieceCalls(const PieceCalls&) = delete;

  const RunContext& context() const { return context_; }  // its local shapes are those of one piece
  int64_t query_offset(int64_t piece) const { return begins_[static_cast<size_t>(piece)]; }
  bool sees_all(int64_t piece) const { return num_seen(piece) == num_positions_; }
  // A call's part of an input: the piece, the positions that it may see, or all of it if the input has no positions.
  Tensor input(size_t i, const Tensor& whole, int64_t piece) const;
  std::vector<int64_t> input_sizes(size_t i, int64_t piece) const;
  // Adds the gradient of one call, which may be empty, to the gradient of the whole input.
  void add_gradient(size_t i, Tensor part, int64_t piece, Tensor& sum) const;

 private:
  const GraphValue& value(size_t i) const { return block_.block.values[node_.inputs[i]]; }
  bool is_divided(size_t i) const;
  bool is_of_positions(size_t i) const;
  int64_t num_seen(int64_t piece) const;

  const ResolvedBlock& block_;
  const Node& node_;
  const RunContext& whole_;
  const ProgramLayout layout_;
  RunContext context_;
  size_t axis_ = 0;
  int64_t length_ = 0;         // length of a piece
  int64_t num_positions_ = 0;  // positions in the row, including cached ones
  std::array<int64_t, kRowPieces> begins_{};
  bool skips_later_keys_ = false;
};

}  // namespace chassis
