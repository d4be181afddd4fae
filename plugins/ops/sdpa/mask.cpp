// Chooses how the CPU computes a mask.
#include "mask.hpp"

#include <algorithm>
#include <unordered_map>

namespace sdpa {
namespace {

// If segments are shorter than this on average, their calls cost more than a mask, unless rows are long: the cost of a
// mask grows with their square.
constexpr int64_t kMinSegmentLength = 16;
constexpr int64_t kMaxMaskLength = 1024;

// Adds the runs of one row, also cut at chunk borders. Returns false if a document continues after another one, since
// it is then not one run.
bool add_runs(const MaskSpec& spec, const Problem& problem, int64_t row, std::vector<Segment>& out, bool& has_padding) {
  const int32_t* ids = problem.documents.empty() ? nullptr : &problem.documents[row * problem.keys];
  std::vector<int32_t> seen;
  int64_t begin = 0, document = 0;
  for (int64_t t = 1; t <= problem.keys; ++t) {
    const bool new_document = t == problem.keys || (ids && ids[t] != ids[t - 1]);
    const bool new_chunk = spec.chunk > 0 && (t - document) % spec.chunk == 0;
    if (!new_document && !new_chunk) continue;
    const int32_t id = ids ? ids[begin] : 0;
    if (id < 0)
      has_padding = true;
    else
      out.push_back({row, 1, begin, t});
    if (new_document && id >= 0) {
      if (std::find(seen.begin(), seen.end(), id) != seen.end()) return false;
      seen.push_back(id);
    }
    begin = t;
    if (new_document) document = t;
  }
  return true;
}

// If every row has the same segments, merges them across rows, so that one call computes each.
void merge_rows(const Problem& problem, std::vector<Segment>& segments) {
  const size_t per_row = segments.size() / static_cast<size_t>(problem.batch);
  if (per_row * static_cast<size_t>(problem.batch) != segments.size()) return;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment &first = segments[i % per_row], &here = segments[i];
    if (here.row != static_cast<int64_t>(i / per_row) || here.begin != first.begin || here.end != first.end) return;
  }
  segments.resize(per_row);
  for (Segment& segment : segments) segment.rows = problem.batch;
}

}  // namespace

MaskSpec::MaskSpec(const OpView& op)
    : causal(op.attr_int("causal", 0) != 0),
      window(op.attr_int("window", 0)),
      chunk(op.attr_int("chunk", 0)),
      document(op.attr_int("document", 0) != 0),
      prefix(op.attr_int("prefix", 0) != 0) {}

Plan plan_of(const MaskSpec& spec, const Problem& problem) {
  Plan plan;
  const bool square = problem.offset == 0 && problem.time == problem.keys;
  const bool all_before = problem.time == 1 && problem.keys == problem.offset + 1;
  const bool window = spec.window > 0 && spec.window < problem.keys;
  const bool chunk = spec.chunk > 0 && spec.chunk < problem.keys;
  plan.causal = spec.causal && !all_before;
  // A prefix of one position changes nothing: every query sees the first key.
  const bool prefix = plan.causal && std::any_of(problem.prefixes.begin(), problem.prefixes.end(),
                                                 [](int32_t length) { return length > 1; });
  for (int32_t id : problem.documents) plan.has_padding |= id < 0;
  bool one_document = true;
  for (int64_t row = 0; row < problem.batch && !problem.documents.empty(); ++row)
    for (int64_t t = 0; t < problem.keys; ++t)
      one_document &= problem.documents[row * problem.keys + t] == problem.documents[row * problem.keys];
  if (plan.has_padding) one_document = false;
  if (window || prefix) return plan;
  if (one_document && !chunk && (square || !plan.causal)) {
    plan.method = Plan::Method::kWhole;
    return plan;
  }
  if (!square) return plan;
  bool runs = true;
  for (int64_t row = 0; row < problem.batch && runs; ++row)
    runs = add_runs(spec, problem, row, plan.segments, plan.has_padding);
  merge_rows(problem, plan.segments);
  const int64_t num_segments = static_cast<int64_t>(plan.segments.size());
  if (runs && (problem.keys > kMaxMaskLength || num_segments * kMinSegmentLength <= problem.batch * problem.keys))
    plan.method = Plan::Method::kSegments;
  else
    plan.segments.clear();
  return plan;
}

int64_t num_mask_rows(const MaskSpec& spec, int64_t batch, int64_t time, int64_t keys) {
  const bool window = spec.window > 0 && spec.window < keys, prefix = spec.causal && spec.prefix;
  const bool parts = spec.document || (spec.chunk > 0 && spec.chunk < keys);
  const bool without_segments = time == keys ? parts && keys <= kMaxMaskLength : parts || spec.causal;
  if (!window && !prefix && !without_segments) return 0;
  return spec.document || spec.prefix ? batch : 1;
}

bool sees(const MaskSpec& spec, const Problem& problem, int64_t b, int64_t t, int64_t s) {
  if (t == s || t >= problem.keys) return true;
  const bool in_prefix = !problem.prefixes.empty() && s < problem.prefixes[b];
  if (spec.causal && s > t && !in_prefix) return false;
  if (spec.window > 0 && t - s >= spec.window) return false;
  if (problem.documents.empty()) return spec.chunk == 0 || s / spec.chunk == t / spec.chunk;
  const int32_t of_query = problem.documents[b * problem.keys + t], of_key = problem.documents[b * problem.keys + s];
  if (of_query != of_key || of_query < 0) return false;
  if (spec.chunk == 0) return true;
  const int64_t first = problem.document_begins[b * problem.keys + t];
  return (s - first) / spec.chunk == (t - first) / spec.chunk;
}

std::vector<int32_t> document_begins(std::span<const int32_t> documents, int64_t batch, int64_t keys) {
  std::vector<int32_t> out;
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = documents.subspan(static_cast<size_t>(b * keys), static_cast<size_t>(keys));
    std::unordered_map<int32_t, int32_t> begins;
    for (int64_t t = 0; t < keys; ++t)
      out.push_back(begins.try_emplace(row[static_cast<size_t>(t)], static_cast<int32_t>(t)).first->second);
  }
  return out;
}

}  // namespace sdpa
