// What a step sends is what theory says, for every strategy: calls and bytes, by axis. Formulas: FSDP and HSDP as in
// Zhao et al. 2023 (arXiv 2304.11277) and FSDP2's code, ZeRO as in Rajbhandari et al. 2020 (arXiv 1910.02054, section
// 7): with Ψ parameters, data parallelism and stages 1 and 2 move 2Ψ, stage 3 moves 3Ψ. A ring of N ranks sends (N-1)/N
// of that.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <regex>
#include <set>
#include <sstream>

#include "tests/regress/planned_rank.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

// The model as formulas need it: which unit reads and which one completes the gradient of how many elements.
class Theory {
 public:
  using Ids = std::vector<const Parameter*>;
  enum class Cut { kRows, kRanges };  // FSDP2: dim 0 in chunks of ceil(rows / N). ZeRO: ceil(elements / N) of all

  Theory(const ParameterTable& table, int num_units, int num_ranks, int num_microbatches)
      : num_ranks(num_ranks), num_microbatches(static_cast<uint64_t>(num_microbatches)) {
    std::set<const Parameter*> seen;
    for (int u = 0; u < num_units; ++u) {
      const auto& all = table.of_unit(static_cast<size_t>(u));
      Ids& reads = reads_.emplace_back(all.begin(), all.end());
      Ids& completes = completes_.emplace_back();
      Ids& adds_to = adds_to_.emplace_back();
      for (const Parameter* p : reads)
        if (p->trainable) adds_to.push_back(p);
      for (const Parameter* p : reads)
        if (seen.insert(p).second && p->trainable) completes.push_back(p), trained.push_back(p);
      if (first_trained < 0 && !completes.empty()) first_trained = u;
    }
  }

  int num_units() const { return static_cast<int>(reads_.size()); }
  const Ids& reads(int unit) const { return reads_[static_cast<size_t>(unit)]; }
  // Parameters whose gradients no unit adds to after it; and all that it adds to.
  const Ids& completes(int unit) const { return completes_[static_cast<size_t>(unit)]; }
  const Ids& adds_to(int unit) const { return adds_to_[static_cast<size_t>(unit)]; }

  // What each of `ways` ranks has of them, padded to the largest part.
  static uint64_t part(const Ids& ids, Cut cut, int ways) {
    int64_t sum = 0;
    for (const Parameter* p : ids) {
      const Shape& shape = p->descriptor.global_shape;
      const int64_t pieces = cut == Cut::kRows ? shape[0] : numel(shape);
      sum += (pieces + ways - 1) / ways * (numel(shape) / pieces);
    }
    return static_cast<uint64_t>(sum);
  }
  // One gather, or one reduction and scatter, of parts of so many elements among so many ranks.
  static void ring(Sent& sent, const std::string& what, uint64_t part, int ways, uint64_t element_bytes,
                   uint64_t times = 1) {
    if (part == 0 || times == 0) return;
    sent[what].calls += times;
    sent[what].bytes += times * static_cast<uint64_t>(ways - 1) * part * element_bytes;
  }
  // A reduction and scatter, and a gather of the parts.
  static void all_reduce(Sent& sent, const std::string& what, uint64_t elements, int ways, uint64_t element_bytes,
                         uint64_t times = 1) {
    if (elements == 0 || times == 0) return;
    sent[what].calls += times;
    sent[what].bytes +=
        times * 2 * static_cast<uint64_t>(ways - 1) * elements * element_bytes / static_cast<uint64_t>(ways);
  }

  int num_ranks;
  uint64_t num_microbatches;
  Ids trained;
  int first_trained = -1;

 private:
  std::vector<Ids> reads_, completes_, adds_to_;
};

struct Widths {
  uint64_t parameter = 4, gradient = 4;  // bytes of what is sent
};

// FSDP2: every unit is gathered for forward and, if it was freed, again for backward; its gradient is reduced and
// scattered; of a tied parameter after each unit that reads it, or once.
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
      // What stayed divided over fewer ranks is cut flat.
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

// HSDP: that within dp_shard, and the sum of each unit's shards over the replicas.
Sent hsdp(const Theory& t, int num_replicas, uint64_t num_sums) {
  Sent sent = fsdp2(t, Kept::kLast);
  for (int u = 0; u < t.num_units(); ++u)
    Theory::all_reduce(sent, "all_reduce dp_replicate", Theory::part(t.adds_to(u), Theory::Cut::kRows, t.num_ranks),
                       num_replicas, 4, num_sums);
  return sent;
}

// Stages 1 and 2: gradients are reduced and scattered, what was stepped is gathered.
Sent zero12(const Theory& t, uint64_t num_reductions, Widths widths = {}) {
  Sent sent;
  const uint64_t part = Theory::part(t.trained, Theory::Cut::kRanges, t.num_ranks);
  Theory::ring(sent, "reduce_scatter dp_shard", part, t.num_ranks, widths.gradient, num_reductions);
  Theory::ring(sent, "all_gather dp_shard", part, t.num_ranks, widths.parameter);
  return sent;
}

// Stage 3: the large parameters of a unit are gathered whenever it is visited, unless they are still there; the small
// ones stay, and are gathered once after a step.
enum class Reuse { kNever, kNext, kAlways };  // stays: never; if the next visit is its own; until the step ends
Sent zero3(const Theory& t, Reuse reuse, int64_t persistence = 0) {
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

Sent ddp(const Theory& t, uint64_t num_buckets) {
  Sent sent;
  uint64_t elements = 0;
  for (const Parameter* p : t.trained) elements += static_cast<uint64_t>(numel(p->descriptor.global_shape));
  Theory::all_reduce(sent, "all_reduce dp_replicate", elements, t.num_ranks, 4);
  sent["all_reduce dp_replicate"].calls = num_buckets;
  return sent;
}

struct Row {
  const char* name;
  std::vector<std::string> strategy;  // lines of [[parallel]]
  int num_ranks;
  int num_microbatches;
  std::function<Sent(const Theory&)> expected;
  std::vector<std::string> overrides = {};
  int num_replicas = 1;

  std::string toml() const {
    std::string table = "[[parallel]]\n";
    for (const std::string& line : strategy) table += line + "\n";
    return divisible_llama(table);
  }
  std::vector<std::string> all_overrides() const {
    std::vector<std::string> all = overrides;
    all.push_back("train.global_batch_size=" + std::to_string(num_ranks * num_replicas * num_microbatches));
    if (num_replicas > 1) all.push_back("mesh.dp_replicate=" + std::to_string(num_replicas));
    return all;
  }
  Theory theory(Session& session) const {
    return {session.parameters(), static_cast<int>(session.program().num_units()), num_ranks, num_microbatches};
  }
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};

const std::string kFsdp2 = "plugin = \"fsdp2\"", kZero = "plugin = \"zero\"", kDdp = "plugin = \"ddp\"";
const std::string kNoReuse = "stage3_max_reuse_distance = 0", kNoneStays = "stage3_param_persistence_threshold = 0";
const std::string kTied = "model.config.tie_word_embeddings=true", kFrozenEmbedding = "freeze.patterns=[\"embed\"]";
const std::string kBf16Sums = "precision.reduce=bf16";
const std::string kUneven =
    "model.config={vocab_size=101,hidden_size=36,intermediate_size=57,num_hidden_layers=2,num_attention_heads=6,num_"
    "key_value_heads=2}";

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
      {"fsdp2_dtypes_of_its_own",
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

class Communication : public testing::TestWithParam<Row> {};

// Of the second step: strategies that learn have learnt.
TEST_P(Communication, OfAStepIsThatOfTheory) {
  const Row& row = GetParam();
  PlannedRank rank(row.toml(), row.num_ranks * row.num_replicas, 0, row.all_overrides());
  rank.step();
  const Sent sent = rank.step();
  EXPECT_EQ(sent, row.expected(row.theory(rank.session())));
  EXPECT_EQ(rank.step(), sent);
}
INSTANTIATE_TEST_SUITE_P(Strategies, Communication, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

Row row_named(const std::string& name) {
  const std::vector<Row> all = rows();
  return *std::find_if(all.begin(), all.end(), [&](const Row& row) { return row.name == name; });
}

// The volumes of the papers' tables, of a model whose last unit's second gather is saved.
TEST(CommunicationVolume, IsThatOfThePapers) {
  const auto volume = [](const std::string& name) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    rank.step();
    uint64_t bytes = 0;
    for (const auto& [what, count] : rank.step()) bytes += count.bytes;
    const Theory t = row.theory(rank.session());
    const auto share = [&](int64_t elements) {
      return static_cast<uint64_t>(elements) * 4 * static_cast<uint64_t>(row.num_ranks - 1) /
             static_cast<uint64_t>(row.num_ranks);
    };
    int64_t head = 0;
    for (const Parameter* p : t.reads(t.num_units() - 1)) head += numel(p->descriptor.global_shape);
    return std::array{bytes, share(rank.parameters().num_elements(false)), share(head)};
  };
  for (const char* name : {"ddp", "zero1", "zero2"}) {
    const auto [bytes, psi, head] = volume(name);
    EXPECT_EQ(bytes, 2 * psi) << name;
  }
  for (const char* name : {"fsdp2_on_4", "zero3"}) {
    const auto [bytes, psi, head] = volume(name);
    EXPECT_EQ(bytes, 3 * psi - head) << name;
  }
}

TEST(CommunicationOfZero3, GathersEveryVisitWhileItLearns) {
  const Row row = row_named("zero3_accumulating");
  PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
  EXPECT_EQ(rank.step(), zero3(row.theory(rank.session()), Reuse::kNever));
}

TEST(CommunicationOfEvaluation, IsOneGatherOfEveryUnit) {
  for (const char* name : {"fsdp2_on_4", "fsdp2_prefetching", "fsdp2_never", "fsdp2_int", "fsdp2_tied", "zero3",
                           "zero3_prefetching", "zero3_with_room"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    const Theory t = row.theory(rank.session());
    Sent expected;
    const auto cut = row.strategy[0] == kFsdp2 ? Theory::Cut::kRows : Theory::Cut::kRanges;
    for (int u = 0; u < t.num_units(); ++u)
      Theory::ring(expected, "all_gather dp_shard", Theory::part(t.reads(u), cut, t.num_ranks), t.num_ranks, 4);
    rank.step();
    EXPECT_EQ(rank.evaluation(), expected) << name;
  }
  for (const char* name : {"ddp", "zero1", "zero2"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks, 0, row.all_overrides());
    EXPECT_EQ(rank.evaluation(), Sent()) << name;
  }
}

// ---- runs of several processes

// A line of the log: a collective that was started, or a unit that is about to compute.
struct Traced {
  bool is_unit = false;
  std::string what;  // "all_gather"; "forward"
  std::string name;  // of the call, or the unit
  std::string group;
  std::string dtype;
  uint64_t count = 0;
};

struct TracedRun {
  std::vector<Traced> second_step;
  Sent sent;               // in it, as the metrics say; without what ranks agree on, which is fp64
  int num_agreements = 0;  // in it
};

TracedRun run_processes(const Row& row, const std::vector<std::string>& more = {}) {
  const ScratchDirectory folder;
  write_text(folder / "run.toml", row.toml());
  std::string tokens;
  for (int i = 0; i < 64; ++i)
    tokens += "{\"input_ids\":[" + std::to_string(i) + ",1,2,3,4,5,6,7,8,9,10,11,12,13,14]}\n";
  write_text(folder / "tokens.jsonl", tokens);
  const int num_processes = row.num_ranks * row.num_replicas;
  std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml", "--nproc", std::to_string(num_processes)};
  for (const auto* overrides : {&row.overrides, &more})
    command.insert(command.end(), overrides->begin(), overrides->end());
  for (const std::string& setting : row.all_overrides()) command.push_back(setting);
  const Outcome outcome = run_process(command, folder.path());
  if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);

  TracedRun run;
  const std::regex call(R"(comm: (\w+) of (\d+) (\w+) '([^']*)' \(#\d+ of ([^)]+)\))"),
      unit(R"(unit: (forward|backward) ([^ ]+)$)");
  std::istringstream log(text_of_file(folder / "run/log.txt"));
  int step = 1;
  Sent agreed;
  for (std::string line; std::getline(log, line) && step <= 2;) {
    std::smatch m;
    Traced traced;
    if (std::regex_search(line, m, call))
      traced = {false, m[1], m[4], m[5], m[3], std::stoull(m[2])};
    else if (std::regex_search(line, m, unit))
      traced = {true, m[1], m[2], "", "", 0};
    else
      continue;
    if (step == 2) {
      run.second_step.push_back(traced);
      if (traced.dtype == "f64") {
        Theory::ring(agreed, traced.what + " " + traced.group, traced.count, num_processes, 8);
        ++run.num_agreements;
      }
    }
    if (traced.name == "loss, gradient norm and wishes") ++step;
  }
  std::istringstream metrics(text_of_file(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.at("step") != 2) continue;
    const std::regex key("comm/(.+)/(\\w+)_calls");
    for (const auto& [name, value] : record.items()) {
      std::smatch m;
      if (!std::regex_match(name, m, key)) continue;
      const std::string what = m[2].str() + " " + m[1].str();
      Count count{value.get<uint64_t>(), record.at("comm/" + m[1].str() + "/" + m[2].str() + "_bytes").get<uint64_t>()};
      count.calls -= agreed[what].calls, count.bytes -= agreed[what].bytes;
      if (count.calls > 0) run.sent[what] = count;
    }
  }
  return run;
}

TEST(CommunicationOfProcesses, IsThatOfTheory) {
  for (const char* name : {"ddp_accumulating", "fsdp2_on_2", "fsdp2_tied", "fsdp2_bf16_sums", "hsdp_accumulating",
                           "zero1_accumulating", "zero2_accumulating", "zero3_tied"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks * row.num_replicas, 0, row.all_overrides());
    const TracedRun run = run_processes(row);
    EXPECT_EQ(run.sent, row.expected(row.theory(rank.session()))) << name;
    EXPECT_EQ(run.num_agreements, 1) << name << ": loss, norm, stop and save are one collective";
  }
}

// For each unit that follows another one: whether it was asked for before that one computed, or only after it. Units
// that were still there do not count.
struct Ahead {
  int before = 0, after = 0;
};
Ahead gathered_ahead(const std::vector<Traced>& trace) {
  Ahead ahead;
  std::map<std::string, size_t> gathered;  // by unit: its last gather
  std::vector<size_t> visits;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (!trace[i].is_unit) {
      if (trace[i].what == "all_gather") gathered[trace[i].name] = i;
      continue;
    }
    const auto own = gathered.extract(trace[i].name);
    if (!visits.empty() && !own.empty() && trace[visits.back()].name != trace[i].name)
      ++(own.mapped() < visits.back() ? ahead.before : ahead.after);
    visits.push_back(i);
  }
  return ahead;
}

// In each of two micro-batches 4 of 5 units follow another one forward, and 4 backward.
TEST(Prefetch, OfFsdp2AsksForAUnitBeforeTheOneAheadOfItComputes) {
  Row row = row_named("fsdp2_on_2");
  row.num_microbatches = 2;
  const Ahead without = gathered_ahead(run_processes(row).second_step);
  EXPECT_EQ(without.before, 0);
  EXPECT_EQ(without.after, 2 * 8);
  const Ahead with = gathered_ahead(
      run_processes(row, {"parallel.0.forward_prefetch=1", "parallel.0.backward_prefetch=1"}).second_step);
  EXPECT_EQ(with.before, without.after);
  EXPECT_EQ(with.after, 0);
}

TEST(Prefetch, OfZero3FollowsTheTraceOfTheFirstStep) {
  const Row row = row_named("zero3_prefetching");
  const Ahead without = gathered_ahead(run_processes(row, {"parallel.0.overlap_comm=\"false\""}).second_step);
  EXPECT_EQ(without.before, 0);
  EXPECT_EQ(without.after, 2 * 8);
  const Ahead with = gathered_ahead(run_processes(row, {"parallel.0.stage3_prefetch_bucket_size=40000"}).second_step);
  EXPECT_EQ(with.before, without.after);
  EXPECT_EQ(with.after, 0);
}

}  // namespace
}  // namespace chassis::test
