// Collectives as ops of a program: the layout pass inserts them between the recorded ops. One row each.
//
// Attributes: axis (name) and, where a dim is divided, dim (index in the value).
//   copy ↔ all_reduce, all_gather ↔ reduce_scatter: each is the other's backward.
//   all_to_all: gathers dim, and splits dim `to` over the ranks; its backward is the same with both exchanged.
//   slice: a rank's part of ids, padded after their end with `pad` (0). take: a part of a value, from index `first` on;
//     its backward fills the rest with zeros. Neither communicates.
//   With `zigzag` (1), slice and all_gather take and join the two pieces of each rank; see LayoutAxis.
//   gather ↔ split: gather gives every rank all of a value. All ranks compute the same with it, so that its gradient is
//     whole on every rank too. split gives a rank's part of such a value. With `sharers`, that many neighbours share a
//     part.
//   log_sum_exp: log Σ exp over the ranks, element by element; its backward needs no communication.
// In a ring (ring_layout.hpp), with `part`, the rank whose positions a chunk has:
//   shift sends to the next rank and shift_back to the previous one; each is the other's backward. They start when
//     their input (in backward, the gradient of their output) is complete, and are waited for at the first use of their
//     result.
//   chunk: the positions of one rank, with zeros after the end. put: writes a chunk into the whole, its second input,
//     and creates the whole if there is none. sum: adds the first input to the second, in place.
#pragma once

#include <string_view>

#include "host/graph/op_id.hpp"

namespace chassis {

struct CommSpec {
  CommOp op;
  std::string_view name;        // "comm.all_gather"
  CommOp dual = CommOp::kNone;  // its backward; kNone: a backward of its own
  bool has_dim = false;         // has the attribute dim when the layout pass inserts it
  bool is_cheap = false;        // does not communicate; recompute = "selective" computes it again
  bool drops_padding = false;   // its result may be longer than the value by the padding of the last rank's part
};
const CommSpec& comm_spec(CommOp op);

// Attributes that begin with kCommPrefix are the host's own: providers do not see them.
inline constexpr std::string_view kCommPrefix = "comm.";
inline constexpr char kSharers[] = "sharers", kZigzag[] = "zigzag";
// On ops that depend on positions and have only those of one part: the index of that part.
inline constexpr char kQueryPart[] = "query_part", kKeyPart[] = "key_part";
// kRing, on attention: the axis around which keys and values travel. kPieces, on any op with query_part: the axis that
// gives it two pieces of a row, each in a call of its own.
inline constexpr char kRing[] = "comm.ring", kPieces[] = "comm.pieces";
// On a linear in a ring: the number of chunks in which it is computed.
inline constexpr char kNumChunks[] = "comm.chunks";

}  // namespace chassis
