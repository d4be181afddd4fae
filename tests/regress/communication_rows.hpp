// Strategies and settings, one row each, with what a step must send according to theory.
#pragma once

#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/regress/planned_rank.hpp"

namespace chassis::test {

// The model as the formulas need it: which parameters a unit reads, and which gradients it completes.
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
  // Parameters whose gradients are complete after the backward of the unit; all whose gradients it adds to.
  const Ids& completes(int unit) const { return completes_[static_cast<size_t>(unit)]; }
  const Ids& adds_to(int unit) const { return adds_to_[static_cast<size_t>(unit)]; }

  // Elements of each of `ways` ranks, padded to the largest part.
  static uint64_t part(const Ids& ids, Cut cut, int ways) {
    int64_t sum = 0;
    for (const Parameter* p : ids) {
      const Shape& shape = p->descriptor.global_shape;
      const int64_t pieces = cut == Cut::kRows ? shape[0] : numel(shape);
      sum += (pieces + ways - 1) / ways * (numel(shape) / pieces);
    }
    return static_cast<uint64_t>(sum);
  }
  // Adds an all_gather or reduce_scatter over `ways` ranks, each of which has `part` elements.
  static void ring(Sent& sent, const std::string& what, uint64_t part, int ways, uint64_t element_bytes,
                   uint64_t times = 1) {
    if (part == 0 || times == 0) return;
    sent[what].calls += times;
    sent[what].bytes += times * static_cast<uint64_t>(ways - 1) * part * element_bytes;
  }
  // Adds an all_reduce, which is a reduce_scatter and an all_gather.
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

// ZeRO stage 3: the large parameters of a unit are gathered at every visit of it, unless they are still gathered. The
// small ones stay whole, and are gathered once after a step.
enum class Reuse { kNever, kNext, kAlways };  // kept: never; if the next visit is of the same unit; until the step ends
Sent zero3(const Theory& theory, Reuse reuse, int64_t persistence = 0);

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

std::vector<Row> rows();
Row row_named(const std::string& name);

}  // namespace chassis::test
