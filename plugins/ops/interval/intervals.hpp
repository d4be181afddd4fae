// Under every mask of chassis/op.h, and every combination of them, a query sees one interval of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "chassis/call.hpp"
#include "chassis/node.hpp"

namespace interval {

struct Mask {
  bool causal = false;
  int64_t window = 0;  // 0: none
  int64_t chunk = 0;
  bool document = false;
  bool prefix = false;

  explicit Mask(const chassis::OpView& op);
};

struct KeyInterval {
  int64_t begin = 0, end = 0;  // empty if end <= begin
};

// The interval of query t of row b is at [b * T + t]. `document_ids` and `prefix_lens` may be absent. Throws
// INVALID_ARGUMENT if a document continues after another one: then its keys are not an interval.
std::vector<KeyInterval> key_intervals(const Mask& mask, int64_t rows, int64_t queries, int64_t keys,
                                       int64_t query_offset, const chassis::BorrowedTensor& document_ids,
                                       const chassis::BorrowedTensor& prefix_lens);
// Number of query-key pairs of one row that the mask does not hide, ignoring documents and prefixes.
int64_t visible_pairs(Mask mask, int64_t queries, int64_t keys);

}  // namespace interval
