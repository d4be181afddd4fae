// The formulas: FSDP and HSDP as in Zhao et al. 2023 (arXiv 2304.11277) and FSDP2's code, ZeRO as in Rajbhandari et al.
// 2020 (arXiv 1910.02054, section 7): with Ψ parameters, data parallelism and stages 1 and 2 move 2Ψ, stage 3 moves 3Ψ.
// A ring of N ranks sends (N-1)/N of that.
#include "tests/regress/communication_rows.hpp"

#include <algorithm>

namespace chassis::test {
namespace {

struct Widths {
  uint64_t parameter = 4, gradient = 4;  // bytes of an element that is sent
};

// FSDP2: an all_gather of every unit for forward and, if it was freed, again for backward; a reduce_scatter of its
// gradient, for a tied parameter after each unit that reads it, or once.
enum class Kept { kLast, kNone, kAll };
enum class Tied { kEach, kOnce };
Sent fsdp2(const Theory& t, Kept kept, Widths widths = {}, uint64_t num_reductions = 0, int reshard_to = 0,
           Tied tied = Tied::kEach) {
  Sent sent;
  if (num_reductions == 0) num_reductions = t.num_microbatches;
  for (int u = 0; u < t.num_units(); ++u) {
    Theory::ring(sent, "all_gather dp_shard", Theory::part(t.reads(u), Theory::Cut::kRows, t.num_ranks), t.num_ranks,
                 widths.parameter, t.num_microbatches);
    if (u >= t.first_trained && kept != Kept::kAll && !(kept == Kept::kLast && u + 1 == t.num_units())) {
      // Parameters that stay sharded over fewer ranks are cut into flat ranges.
      const int ways = reshard_to ? reshard_to : t.num_ranks;
      Theory::ring(sent, reshard_to ? "all_gather dp_shard:" + std::to_string(ways) : "all_gather dp_shard",
                   Theory::part(t.reads(u), reshard_to ? Theory::Cut::kRanges : Theory::Cut::kRows, ways), ways,
                   widths.parameter, t.num_microbatches);
    }
    const Theory::Ids& reduced = tied == Tied::kEach ? t.adds_to(u) : t.completes(u);
    Theory::ring(sent, "reduce_scatter dp_shard", Theory::part(reduced, Theory::Cut::kRows, t.num_ranks), t.num_ranks,
                 widths.gradient, num_reductions);
  }
  return sent;
}

// HSDP: FSDP2 within dp_shard, and an all_reduce of the shards of each unit over the replicas.
Sent hsdp(const Theory& t, int num_replicas, uint64_t num_sums) {
  Sent sent = fsdp2(t, Kept::kLast);
  for (int u = 0; u < t.num_units(); ++u)
    Theory::all_reduce(sent, "all_reduce dp_replicate", Theory::part(t.adds_to(u), Theory::Cut::kRows, t.num_ranks),
                       num_replicas, 4, num_sums);
  return sent;
}

// ZeRO stages 1 and 2: a reduce_scatter of the gradients and an all_gather of the updated parameters.
Sent zero12(const Theory& t, uint64_t num_reductions, Widths widths = {}) {
  Sent sent;
  const uint64_t part = Theory::part(t.trained, Theory::Cut::kRanges, t.num_ranks);
  Theory::ring(sent, "reduce_scatter dp_shard", part, t.num_ranks, widths.gradient, num_reductions);
  Theory::ring(sent, "all_gather dp_shard", part, t.num_ranks, widths.parameter);
  return sent;
}

Sent ddp(const Theory& t, uint64_t num_buckets) {
  Sent sent;
  uint64_t elements = 0;
  for (const Parameter* p : t.trained) elements += static_cast<uint64_t>(numel(p->descriptor.global_shape));
  Theory::all_reduce(sent, "all_reduce dp_replicate", elements, t.num_ranks, 4);
  sent["all_reduce dp_replicate"].calls = num_buckets;
  return sent;
}

const std::string kFsdp2 = "plugin = \"fsdp2\"", kZero = "plugin = \"zero\"", kDdp = "plugin = \"ddp\"";
const std::string kNoReuse = "stage3_max_reuse_distance = 0", kNoneStays = "stage3_param_persistence_threshold = 0";
const std::string kTied = "model.config.tie_word_embeddings=true", kFrozenEmbedding = "freeze.patterns=[\"embed\"]";
const std::string kBf16Sums = "precision.reduce=bf16";
const std::string kUneven =
    "model.config={vocab_size=101,hidden_size=36,intermediate_size=57,num_hidden_layers=2,num_attention_heads=6,num_"
    "key_value_heads=2}";

}  // namespace

Sent zero3(const Theory& t, Reuse reuse, int64_t persistence) {
  std::vector<int> visits;
  for (uint64_t m = 0; m < t.num_microbatches; ++m) {
    for (int u = 0; u < t.num_units(); ++u) visits.push_back(u);
    for (int u = t.num_units(); u-- > t.first_trained;) visits.push_back(u);
  }
  const auto is_small = [&](const Parameter* p) { return numel(p->descriptor.global_shape) <= persistence; };
  Sent sent;
  for (size_t v = 0; v < visits.size(); ++v) {
    if (reuse == Reuse::kNext && v > 0 && visits[v - 1] == visits[v]) continue;
    if (reuse == Reuse::kAlways &&
        std::count(visits.begin(), visits.begin() + static_cast<std::ptrdiff_t>(v), visits[v]))
      continue;
    Theory::Ids large = t.reads(visits[v]);
    std::erase_if(large, is_small);
    Theory::ring(sent, "all_gather dp_shard", Theory::part(large, Theory::Cut::kRanges, t.num_ranks), t.num_ranks, 4);
  }
  Theory::Ids small = t.trained;
  std::erase_if(small, [&](const Parameter* p) { return !is_small(p); });
  Theory::ring(sent, "all_gather dp_shard", Theory::part(small, Theory::Cut::kRanges, t.num_ranks), t.num_ranks, 4);
  Theory::ring(sent, "reduce_scatter dp_shard", Theory::part(t.trained, Theory::Cut::kRanges, t.num_ranks), t.num_ranks,
               4, t.num_microbatches);
  return sent;
}

std::vector<Row> rows() {
  const auto last_kept = [](const Theory& t) { return fsdp2(t, Kept::kLast); };
  const auto none_kept = [](const Theory& t) { return fsdp2(t, Kept::kNone); };
  const auto all_kept = [](const Theory& t) { return fsdp2(t, Kept::kAll); };
  const auto next_kept = [](const Theory& t) { return zero3(t, Reuse::kNext); };
  return {
      {"ddp", {kDdp}, 4, 1, [](const Theory& t) { return ddp(t, 1); }},
      {"ddp_accumulating", {kDdp}, 2, 3, [](const Theory& t) { return ddp(t, 1); }},
      {"ddp_without_buckets", {kDdp, "bucket_mb = 0"}, 2, 1, [](const Theory& t) { return ddp(t, t.trained.size()); }},
      {"ddp_tied", {kDdp}, 2, 1, [](const Theory& t) { return ddp(t, 1); }, {kTied}},
      {"fsdp2_on_2", {kFsdp2}, 2, 1, last_kept},
      {"fsdp2_on_4", {kFsdp2}, 4, 1, last_kept},
      {"fsdp2_accumulating", {kFsdp2}, 4, 3, last_kept},
      {"fsdp2_uneven", {kFsdp2}, 3, 2, last_kept, {kUneven}},
      {"fsdp2_recomputing", {kFsdp2}, 2, 2, last_kept, {"recompute.mode=full"}},
      {"fsdp2_tied", {kFsdp2}, 2, 2, last_kept, {kTied}},
      {"fsdp2_tied_reduced_once",
       {kFsdp2, "reduce_tied_once = true"},
       2,
       2,
       [](const Theory& t) { return fsdp2(t, Kept::kLast, {}, 0, 0, Tied::kOnce); },
       {kTied}},
      {"hsdp_tied", {kFsdp2}, 2, 2, [](const Theory& t) { return hsdp(t, 2, 1); }, {kTied}, 2},
      {"fsdp2_frozen_embedding", {kFsdp2}, 2, 2, last_kept, {kFrozenEmbedding}},
      {"fsdp2_prefetching", {kFsdp2, "forward_prefetch = 2", "backward_prefetch = 2"}, 2, 2, last_kept},
      {"fsdp2_offloading", {kFsdp2, "offload = \"cpu\""}, 2, 2, last_kept},
      {"fsdp2_always", {kFsdp2, "reshard_after_forward = \"always\""}, 4, 2, none_kept},
      {"fsdp2_never", {kFsdp2, "reshard_after_forward = \"never\""}, 4, 2, all_kept},
      {"fsdp2_int", {kFsdp2, "reshard_to = 2"}, 4, 2, [](const Theory& t) { return fsdp2(t, Kept::kLast, {}, 0, 2); }},
      {"fsdp2_int_uneven",
       {kFsdp2, "reshard_to = 2"},
       4,
       1,
       [](const Theory& t) { return fsdp2(t, Kept::kLast, {}, 0, 2); },
       {kUneven}},
      {"fsdp2_one_reduction",
       {kFsdp2, "reduce_every_microbatch = false"},
       2,
       3,
       [](const Theory& t) { return fsdp2(t, Kept::kLast, {}, 1); }},
      {"fsdp2_bf16",
       {kFsdp2},
       2,
       1,
       [](const Theory& t) {
         return fsdp2(t, Kept::kLast, {2, 4});
       },
       {"precision.compute=bf16"}},
      {"fsdp2_bf16_sums",
       {kFsdp2},
       2,
       1,
       [](const Theory& t) {
         return fsdp2(t, Kept::kLast, {4, 2});
       },
       {kBf16Sums}},
      {"fsdp2_own_dtypes",
       {kFsdp2, "param_dtype = \"bf16\"", "reduce_dtype = \"bf16\""},
       2,
       1,
       [](const Theory& t) {
         return fsdp2(t, Kept::kLast, {2, 2});
       }},
      {"hsdp", {kFsdp2}, 2, 1, [](const Theory& t) { return hsdp(t, 2, 1); }, {}, 2},
      {"hsdp_accumulating", {kFsdp2}, 2, 3, [](const Theory& t) { return hsdp(t, 2, 1); }, {}, 2},
      {"hsdp_summing_each_microbatch",
       {kFsdp2, "all_reduce_every_microbatch = true"},
       2,
       3,
       [](const Theory& t) { return hsdp(t, 2, 3); },
       {},
       2},
      {"zero1", {kZero, "stage = 1"}, 4, 1, [](const Theory& t) { return zero12(t, 1); }},
      {"zero1_accumulating", {kZero, "stage = 1"}, 2, 3, [](const Theory& t) { return zero12(t, 1); }},
      {"zero1_tied_and_uneven",
       {kZero, "stage = 1"},
       3,
       1,
       [](const Theory& t) { return zero12(t, 1); },
       {kUneven, kTied}},
      {"zero1_bf16",
       {kZero, "stage = 1"},
       2,
       2,
       [](const Theory& t) {
         return zero12(t, 1, {2, 2});
       },
       {"precision.compute=bf16", kBf16Sums}},
      {"zero2", {kZero, "stage = 2"}, 4, 1, [](const Theory& t) { return zero12(t, 1); }},
      {"zero2_accumulating", {kZero, "stage = 2"}, 2, 3, [](const Theory& t) { return zero12(t, 3); }},
      {"zero2_frozen_embedding",
       {kZero, "stage = 2"},
       2,
       2,
       [](const Theory& t) { return zero12(t, 2); },
       {kFrozenEmbedding}},
      {"zero3", {kZero, kNoneStays, kNoReuse}, 4, 1, next_kept},
      {"zero3_accumulating", {kZero, kNoneStays, kNoReuse}, 2, 3, next_kept},
      {"zero3_recomputing", {kZero, kNoneStays, kNoReuse}, 2, 2, next_kept, {"recompute.mode=full"}},
      {"zero3_tied", {kZero, kNoneStays, kNoReuse}, 2, 2, next_kept, {kTied}},
      {"zero3_frozen_embedding", {kZero, kNoneStays, kNoReuse}, 2, 2, next_kept, {kFrozenEmbedding}},
      {"zero3_uneven", {kZero, kNoneStays, kNoReuse}, 3, 1, next_kept, {kUneven}},
      {"zero3_prefetching", {kZero, kNoneStays, kNoReuse, "overlap_comm = \"true\""}, 2, 2, next_kept},
      {"zero3_with_room", {kZero, kNoneStays}, 4, 2, [](const Theory& t) { return zero3(t, Reuse::kAlways); }},
      {"zero3_persistence",
       {kZero, "stage3_param_persistence_threshold = 1000", kNoReuse},
       4,
       2,
       [](const Theory& t) { return zero3(t, Reuse::kNext, 1000); }},
  };
}

Row row_named(const std::string& name) {
  const std::vector<Row> all = rows();
  return *std::find_if(all.begin(), all.end(), [&](const Row& row) { return row.name == name; });
}

}  // namespace chassis::test
