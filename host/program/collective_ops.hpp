// Collectives as ops of a program: the layout pass inserts them between the recorded ops. One row each.
//
// Attributes: axis (name) and, where a dim is divided, dim (index in the value).
//   copy ↔ all_reduce, all_gather ↔ reduce_scatter: each is the other's backward.
//   all_to_all: gathers dim, and splits dim `to` over the ranks; its backward is the same with both exchanged.
//   slice: a rank's part of ids, padded with `pad` (0) after the end. take: a part of a value, from index `first` on;
//     its backward fills the rest with zeros. Neither communicates.
//   With `zigzag` (1), slice and all_gather take and join the two pieces of each rank; see LayoutAxis.
//   gather ↔ split: all of a value on every rank, where each computes the same with it, so that its gradient is whole
//     on every rank too; and a rank's part of such a value. With `sharers`, that many neighbours share a part.
//   log_sum_exp: log Σ exp over the ranks, element by element; its backward needs no communication.
// In a ring (ring_layout.hpp), with `part`, the rank whose positions a chunk has:
//   shift sends to the next rank and shift_back to the previous; each is the other's backward. They start when their
//     input is there, or all of its gradient, and are waited for at the first use of their output.
//   chunk: the positions of one rank, zero-padded. put: writes a chunk into the whole, its second input, and makes that
//     if there is none. sum: adds the first input to the second, in place.
#pragma once

#include <string_view>

#include "host/program/op_id.hpp"

namespace chassis {

struct CommSpec {
  CommOp op;
  std::string_view name;          // "comm.all_gather"
  CommOp dual = CommOp::kNone;    // its backward; kNone: a backward of its own
  bool has_dim = false;           // has the attribute dim when the layout pass inserts it
  bool is_cheap = false;          // does not communicate; recompute = "selective" computes it again
  bool drops_padding = false;     // its result may be longer than the value by the padding of the last rank's part
};
const CommSpec& comm_spec(CommOp op);

// Attributes that begin with kCommPrefix are the host's own: providers do not see them.
inline constexpr std::string_view kCommPrefix = "comm.";
inline constexpr char kSharers[] = "sharers", kZigzag[] = "zigzag";
// The part of the positions that an op computes, if it depends on positions.
inline constexpr char kQueryPart[] = "query_part", kKeyPart[] = "key_part";
// Of attention: the axis around which keys and values travel. With query_part: the axis that gives the op two pieces of
// a row, one call each.
inline constexpr char kRing[] = "comm.ring", kPieces[] = "comm.pieces";
// The number of chunks in which a linear in a ring is computed.
inline constexpr char kNumChunks[] = "comm.chunks";

}  // namespace chassis
