// The keys that a query sees, and the cheapest way to compute such attention on the CPU: LibTorch's causal or full
// kernel on whole rows, the same kernel on segments of rows, or an explicit mask.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chassis/ops.hpp"

namespace sdpa {

using namespace chassis;
using Shape = std::vector<int64_t>;

// The mask attributes of the op; chassis/op.h says what each means.
struct MaskSpec {
  explicit MaskSpec(const OpView& op);
  bool operator==(const MaskSpec&) const = default;

  bool causal = false;
  int64_t window = 0;
  int64_t chunk = 0;
  bool document = false;
  bool prefix = false;
};

// The sizes of a call, and its document ids and prefix lengths (empty if absent).
struct Problem {
  int64_t batch = 0, time = 0, keys = 0, offset = 0;
  std::vector<int32_t> documents;  // [batch, keys]
  std::vector<int32_t> prefixes;   // [batch]
  // [batch, keys]: the first position of the document at each position; empty without chunks or documents.
  std::vector<int32_t> document_begins = {};
  bool operator==(const Problem&) const = default;
};

// Positions [begin, end) of rows [row, row + rows), which attend only to themselves.
struct Segment {
  int64_t row, rows, begin, end;
};

struct Plan {
  enum class Method { kWhole, kSegments, kMask } method = Method::kMask;
  bool causal = false;            // kWhole, kSegments: with LibTorch's causal flag
  std::vector<Segment> segments;  // kSegments; without padding
  bool has_padding = false;
};
Plan plan_of(const MaskSpec& spec, const Problem& problem);

// The rows of the mask that the plan of a call may need, 1 if all rows of the batch share it, 0 if none is made.
// Assumes that every document is one run of positions, as in every batch of the host.
int64_t num_mask_rows(const MaskSpec& spec, int64_t batch, int64_t time, int64_t keys);

// True if query t (counted from the row's first key) of row b sees key s. Padding sees itself, or everything if it lies
// after the keys, so that no row of a softmax is empty.
bool sees(const MaskSpec& spec, const Problem& problem, int64_t b, int64_t t, int64_t s);

// The first position of each position's document, for documents [batch, keys].
std::vector<int32_t> document_begins(std::span<const int32_t> documents, int64_t batch, int64_t keys);

}  // namespace sdpa
