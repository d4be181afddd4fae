// How documents become rows.
#pragma once

#include <cstdint>

#include "host/data/data_config.hpp"

namespace chassis {

struct RowOptions {
  Packing packing = Packing::kConcatSplit;
  Overflow overflow = Overflow::kError;
  int64_t seq_len = 0;
  bool shuffle = false;
  uint64_t seed = 0;
  uint64_t stream = 0;    // index of the set, so that equal sets are shuffled differently
  bool one_pass = false;  // evaluation: ends after the last document, and pads the last row
  // Opening the set fails if more than this fraction of its documents is dropped because they are too long.
  double max_drop_ratio = 1;
};

// True if documents that do not fit into a row are dropped. With truncate_left_prompt, documents were cut when they
// were encoded, so those that are still too long have no prompt left to cut.
constexpr bool drops_long_documents(Overflow overflow) {
  return overflow == Overflow::kDrop || overflow == Overflow::kTruncateLeftPrompt;
}

}  // namespace chassis
