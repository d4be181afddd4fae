// Attention whose keys and values travel from rank to rank, so that none has all of them (Liu et al. 2023, "Ring
// Attention with Blockwise Transformers"). Each rank has two pieces of the positions, one from the start and one from
// the end of a row, so that all do equal work under a causal mask.
//
// B rows, T positions of a rank, h query heads, D dims: queries, keys and values are [B, T, heads, dims], log sums
// [B, h, T] in fp32.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "host/compile/layout_pass.hpp"
#include "host/execute/run_context.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// The offsets of the queries and keys of one call in their rows.
struct AttentionOffsets {
  int64_t query = 0, key = 0;
};

struct PartialAttention {
  Tensor output;   // for the keys of this call
  Tensor log_sum;  // -inf where a query sees none of them
};

// One call of a kernel.
struct AttentionCall {
  const Tensor &q, &k, &v;
  AttentionOffsets offsets;
  int64_t num_positions = 0;  // in a row

  std::vector<int64_t> output_sizes() const { return {q.size(0), q.size(1), q.size(2), v.size(3)}; }
  std::vector<int64_t> log_sum_sizes() const { return {q.size(0), q.size(2), q.size(1)}; }
};

// The provider's kernel. All tensors are contiguous.
using AttendForward =
    std::function<PartialAttention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOffsets offsets)>;
// `output` and `log_sum` are those of all keys. Returns the gradients of q, k and v that come from these keys.
using AttendBackward = std::function<std::array<Tensor, 3>(const Tensor& q, const Tensor& k, const Tensor& v,
                                                           const PartialAttention& whole, const Tensor& gradient,
                                                           AttentionOffsets offsets)>;

// The ranks of the axis, and each rank's part of a row.
struct Ring {
  Collectives* collectives;
  std::string axis;
  int64_t num_ranks = 1, rank = 0;
  bool skips_later_keys = false;  // no query sees a later key

  // The first position of a rank's piece.
  int64_t begin(int64_t of_rank, int64_t piece, int64_t length) const {
    return zigzag_begin(of_rank, num_ranks, piece, length);
  }
};

// [step][all-ranks] of the axis. Sends keys and values num_ranks - 1 times, while the kernel computes.
PartialAttention ring_forward(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttendForward& attend);
// Also sends the gradients of keys and values, in fp32, num_ranks times.
std::array<Tensor, 3> ring_backward(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const PartialAttention& whole, const Tensor& gradient,
                                    const AttendBackward& attend);
// For calls with all keys of the row at hand, such as those of a cache: no rank waits for another. `first` is the
// position of the row's first query.
Tensor attend_pieces(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v, int64_t first,
                     const AttendForward& attend);

}  // namespace chassis
