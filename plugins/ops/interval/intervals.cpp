// Computes the key interval of each query.
#include "intervals.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace interval {

using namespace chassis;

namespace {

// The run of equal ids around each position; empty for padding.
std::vector<KeyInterval> documents_of(const int32_t* ids, int64_t length, int64_t row) {
  std::vector<KeyInterval> found(static_cast<size_t>(length));
  std::set<int32_t> seen;
  for (int64_t begin = 0; begin < length;) {
    int64_t end = begin;
    while (end < length && ids[end] == ids[begin]) ++end;
    if (ids[begin] >= 0 && !seen.insert(ids[begin]).second)
      throw Failure(CHASSIS_INVALID_ARGUMENT, "document ", ids[begin], " of row ", row,
                    " continues after another document at position ", begin, "; documents must be contiguous");
    if (ids[begin] >= 0) std::fill(found.begin() + begin, found.begin() + end, KeyInterval{begin, end});
    begin = end;
  }
  return found;
}

}  // namespace

Mask::Mask(const OpView& op)
    : causal(op.attr_int("causal", 0) != 0),
      window(op.attr_int("window", 0)),
      chunk(op.attr_int("chunk", 0)),
      document(op.attr_int("document", 0) != 0),
      prefix(op.attr_int("prefix", 0) != 0),
      has_key_part(op.has_attr("key_part")) {}

Positions::Positions(const Mask& mask, const Call& call, int64_t keys)
    : query_offset(call.query_offset()),
      key_offset(mask.has_key_part ? call.key_offset() : 0),
      count(mask.has_key_part ? call.num_positions() : keys) {}

std::vector<KeyInterval> key_intervals(const Mask& mask, int64_t rows, int64_t queries, int64_t keys,
                                       const Positions& positions, const BorrowedTensor& document_ids,
                                       const BorrowedTensor& prefix_lens) {
  std::vector<KeyInterval> all(static_cast<size_t>(rows * queries));
  const bool documents = mask.document && document_ids;
  const int64_t count = positions.count;
  if (documents && document_ids.size(1) != count)
    throw Failure(CHASSIS_INVALID_ARGUMENT, "document_ids has ", document_ids.size(1), " positions, expected ", count,
                  ", one per key");
  for (int64_t b = 0; b < rows; ++b) {
    const auto own = documents ? documents_of(document_ids.data<int32_t>() + b * count, count, b)
                               : std::vector<KeyInterval>(static_cast<size_t>(count), KeyInterval{0, count});
    const int64_t prefix = mask.prefix && prefix_lens ? prefix_lens.data<int32_t>()[b] : 0;
    for (int64_t t = 0; t < queries; ++t) {
      const int64_t at = positions.query_offset + t;
      if (at >= count) continue;  // padding sees nothing
      KeyInterval seen = own[static_cast<size_t>(at)];
      const int64_t origin = seen.begin;  // of chunks
      if (mask.causal) seen.end = std::min(seen.end, std::max(at + 1, prefix));
      if (mask.window > 0) seen.begin = std::max(seen.begin, at - mask.window + 1);
      if (mask.chunk > 0) {
        const int64_t begin = origin + (at - origin) / mask.chunk * mask.chunk;
        seen.begin = std::max(seen.begin, begin);
        seen.end = std::min(seen.end, begin + mask.chunk);
      }
      seen.begin = std::clamp<int64_t>(seen.begin - positions.key_offset, 0, keys);
      seen.end = std::clamp<int64_t>(seen.end - positions.key_offset, 0, keys);
      all[static_cast<size_t>(b * queries + t)] = seen;
    }
  }
  return all;
}

void mark_unseen(const std::vector<KeyInterval>& intervals, int64_t rows, int64_t heads, int64_t queries,
                 float* log_sum) {
  for (int64_t b = 0; b < rows; ++b)
    for (int64_t t = 0; t < queries; ++t) {
      const KeyInterval& seen = intervals[static_cast<size_t>(b * queries + t)];
      if (seen.begin < seen.end) continue;
      for (int64_t n = 0; n < heads; ++n) log_sum[(b * heads + n) * queries + t] = -INFINITY;
    }
}

int64_t visible_pairs(Mask mask, int64_t queries, int64_t keys) {
  mask.document = mask.prefix = false;
  int64_t pairs = 0;
  for (const KeyInterval& seen : key_intervals(mask, 1, queries, keys, Positions(keys), {}, {}))
    pairs += std::max<int64_t>(0, seen.end - seen.begin);
  return pairs;
}

}  // namespace interval
