// How heads divide rows and vocabulary into tiles, and the memory for them.
#pragma once

#include <cstdint>

#include "chassis/node.hpp"
#include "kernels.hpp"

namespace fused {

struct HeadSpec {
  explicit HeadSpec(const NodeView& node);

  int64_t ignore_index;
  float softcap;  // 0: none
};

// Does not depend on the number of threads, so that results do not.
struct HeadSizes {
  int64_t block_rows;    // of a block whose logits are made, used and forgotten tile by tile
  int64_t kept_rows;     // of a block whose exponentials are kept until its sums are known
  int64_t columns;       // of a tile
  int64_t kept_columns;  // of a tile of exponentials that are kept
  bool widens;           // products of bf16 are computed from fp32 copies
  // Bytes of a pass over the tiles: with neither gradient, with that of the input, with that of the weight by sums that
  // are known, and with both while exponentials are kept.
  uint64_t softmax_bytes, input_bytes, weight_bytes, kept_bytes;
};
HeadSizes head_sizes(const Host& host, const NodeView& node);

// The rows of each block if `rows` rows are divided equally into blocks of at most `most_rows`.
int64_t rows_per_block(int64_t rows, int64_t most_rows);

}  // namespace fused
