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
  bool has_key_part = false;

  explicit Mask(const chassis::OpView& op);
};

struct KeyInterval {
  int64_t begin = 0, end = 0;  // empty if end <= begin
};

// The positions of the queries and keys of a call in their rows.
struct Positions {
  int64_t query_offset = 0;
  int64_t key_offset = 0;
  int64_t count = 0;  // of the row; document_ids has as many

  // The positions of a call with this mask and number of keys.
  Positions(const Mask& mask, const chassis::Call& call, int64_t keys);
  explicit Positions(int64_t keys) : count(keys) {}
};

// The interval of query t of row b, counted from the first of the keys, is at [b * T + t]. `document_ids` and
// `prefix_lens` may be absent. Throws INVALID_ARGUMENT if a document continues after another one, since its keys are
// then not an interval.
std::vector<KeyInterval> key_intervals(const Mask& mask, int64_t rows, int64_t queries, int64_t keys,
                                       const Positions& positions, const chassis::BorrowedTensor& document_ids,
                                       const chassis::BorrowedTensor& prefix_lens);
// Sets log_sum [rows, heads, queries] for queries that see none of the keys.
void mark_unseen(const std::vector<KeyInterval>& intervals, int64_t rows, int64_t heads, int64_t queries,
                 float* log_sum);
// Number of query-key pairs of one row that the mask does not hide, ignoring documents and prefixes.
int64_t visible_pairs(Mask mask, int64_t queries, int64_t keys);

}  // namespace interval
