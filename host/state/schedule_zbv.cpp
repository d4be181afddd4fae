// ZB-V: P. Qi et al., Pipeline Parallelism with Controllable Memory, 2024, and Zero Bubble Pipeline Parallelism, 2023,
// section 6. The order of forwards and backward_inputs is fixed; a list scheduler places backward_params.
#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/state/schedule_generators.hpp"

namespace chassis {
namespace {

using Kind = Work::Kind;

// The list of one rank that has no bubble if all costs are the same. It is made for at least 2p-1 micro-batches, which
// fill the pipeline; entries of micro-batches that do not exist are left out.
class UnitCostList {
 public:
  UnitCostList(int num_ranks, int rank, int num_microbatches) : num_microbatches_(num_microbatches) {
    const int filling = std::max(2 * num_ranks - 1, num_microbatches);
    for (int k = 2 * (num_ranks - rank) - 1; k > 0; --k) forward(0);
    for (int k = rank; k > 0; --k) forward(1), forward(0);
    for (int k = num_ranks - rank; k > 0; --k) forward(1), inputs(1), params(1);
    while (forwards_[1] < forwards_[0] || forwards_[0] < filling) {
      if (forwards_[0] < filling) forward(0);
      inputs(0), params(0);
      forward(1);
      inputs(1), params(1);
    }
    for (int k = rank; k > 0; --k) inputs(0), inputs(1);
    for (int k = num_ranks - rank; k > 0; --k) inputs(0), params(0);
    while (params_[1] < inputs_[1]) params(1);
    while (params_[0] < inputs_[0]) params(0);
  }
  std::vector<Work> take() { return std::move(list_); }

 private:
  void forward(int chunk) { add(Kind::kForward, chunk, forwards_); }
  void inputs(int chunk) { add(Kind::kBackwardInputs, chunk, inputs_); }
  void params(int chunk) { add(Kind::kBackwardParams, chunk, params_); }
  void add(Kind kind, int chunk, int (&counts)[2]) {
    const int microbatch = counts[chunk]++;
    if (microbatch < num_microbatches_) list_.push_back({kind, chunk, microbatch});
  }

  int num_microbatches_;
  int forwards_[2] = {}, inputs_[2] = {}, params_[2] = {};  // by chunk
  std::vector<Work> list_;
};

Schedule unit_cost_schedule(int num_ranks, int num_microbatches) {
  Schedule out;
  out.stages = StageMap::v_shaped(num_ranks);
  out.num_microbatches = num_microbatches;
  for (int rank = 0; rank < num_ranks; ++rank)
    out.ranks.push_back(UnitCostList(num_ranks, rank, num_microbatches).take());
  return out;
}

// Moves backward_params to where their rank waits. At each point in time a rank runs its next forward or
// backward_inputs if it can, otherwise its oldest backward_params. Activations in flight are limited to those of 1F1B.
class ParamsPlacer {
 public:
  // Rather than start a backward_params, a rank waits up to `patience` times its duration for its next entry.
  ParamsPlacer(const Schedule& schedule, std::span<const StageCost> costs, double patience)
      : costs_(costs), patience_(patience), out_(schedule) {
    const size_t num_entries =
        static_cast<size_t>(schedule.stages.num_stages()) * static_cast<size_t>(schedule.num_microbatches);
    forward_ends_.assign(num_entries, kUnknown);
    inputs_ends_.assign(num_entries, kUnknown);
    for (std::vector<Work>& list : out_.ranks) {
      Rank rank;
      std::erase_if(list, [](const Work& work) { return work.kind == Kind::kBackwardParams; });
      rank.next.assign(list.begin(), list.end());
      list.clear();
      ranks_.push_back(std::move(rank));
    }
  }

  Schedule place() {
    choices_.resize(ranks_.size());
    for (int rank = 0; rank < out_.stages.num_ranks(); ++rank) update(rank);
    while (!starts_.empty()) {
      const int rank = starts_.begin()->second;
      const int stage = run(choices_[static_cast<size_t>(rank)]);
      // Other ranks wait only for what this one has made for them.
      update(rank);
      for (const int neighbour : {stage - 1, stage + 1})
        if (neighbour >= 0 && neighbour < out_.stages.num_stages()) update(out_.stages.rank(neighbour));
    }
    for (const Rank& rank : ranks_) CHASSIS_CHECK(rank.next.empty() && rank.params.empty(), "an entry never ran");
    return std::move(out_);
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  struct Rank {
    double time = 0.0;
    int in_flight = 0;
    std::deque<Work> next;    // forwards and backward_inputs
    std::deque<Work> params;  // backward_params whose backward_inputs has run
  };
  struct Choice {
    double start = kUnknown;
    int rank = -1;
    bool is_params = false;
  };

  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(out_.num_microbatches) + static_cast<size_t>(microbatch);
  }
  double arrival(const std::vector<double>& ends, int from, int to, int microbatch) const {
    const bool is_sent = out_.stages.rank(from) != out_.stages.rank(to);
    return ends[index(from, microbatch)] + (is_sent ? costs_[static_cast<size_t>(std::min(from, to))].transfer : 0.0);
  }

  // When the rank's next forward or backward_inputs can start; kUnknown if what it needs has not been placed.
  double next_start(int r) const {
    const Rank& rank = ranks_[static_cast<size_t>(r)];
    if (rank.next.empty()) return kUnknown;
    const Work& work = rank.next.front();
    const int stage = out_.stages.stage(r, work.chunk);
    if (work.kind == Kind::kForward) {
      if (rank.in_flight == 2 * out_.stages.num_ranks()) return kUnknown;
      return stage == 0 ? rank.time : std::max(rank.time, arrival(forward_ends_, stage - 1, stage, work.microbatch));
    }
    if (stage == out_.stages.num_stages() - 1) return rank.time;
    return std::max(rank.time, arrival(inputs_ends_, stage + 1, stage, work.microbatch));
  }

  Choice choose(int r) const {
    const Rank& rank = ranks_[static_cast<size_t>(r)];
    const double start = next_start(r);
    if (rank.params.empty()) return {start, r, false};
    const StageCost& cost = costs_[static_cast<size_t>(out_.stages.stage(r, rank.params.front().chunk))];
    if (start <= rank.time + patience_ * cost.backward_params) return {start, r, false};
    return {rank.time, r, true};
  }

  void update(int rank) {
    Choice& choice = choices_[static_cast<size_t>(rank)];
    starts_.erase({choice.start, rank});
    choice = choose(rank);
    if (choice.start < kUnknown) starts_.emplace(choice.start, rank);
  }

  // Returns the stage that ran.
  int run(const Choice choice) {
    Rank& rank = ranks_[static_cast<size_t>(choice.rank)];
    std::deque<Work>& queue = choice.is_params ? rank.params : rank.next;
    const Work work = queue.front();
    queue.pop_front();
    const int stage = out_.stages.stage(choice.rank, work.chunk);
    const StageCost& cost = costs_[static_cast<size_t>(stage)];
    if (work.kind == Kind::kForward) {
      rank.time = forward_ends_[index(stage, work.microbatch)] = choice.start + cost.forward;
      ++rank.in_flight;
    } else if (work.kind == Kind::kBackwardInputs) {
      rank.time = inputs_ends_[index(stage, work.microbatch)] = choice.start + cost.backward_inputs;
      rank.params.push_back({Kind::kBackwardParams, work.chunk, work.microbatch});
    } else {
      rank.time = choice.start + cost.backward_params;
      --rank.in_flight;
    }
    out_.ranks[static_cast<size_t>(choice.rank)].push_back(work);
    return stage;
  }

  std::span<const StageCost> costs_;
  double patience_;
  Schedule out_;
  std::vector<Rank> ranks_;
  std::vector<Choice> choices_;                     // by rank
  std::set<std::pair<double, int>> starts_;         // start times of the choices that can run, and their ranks
  std::vector<double> forward_ends_, inputs_ends_;  // by stage and micro-batch
};

}  // namespace

Schedule zbv_schedule(int num_ranks, int num_microbatches, std::span<const StageCost> costs) {
  CHASSIS_CHECK(num_ranks > 0 && num_microbatches > 0, "a schedule without ranks or micro-batches");
  const Schedule unit_costs = unit_cost_schedule(num_ranks, num_microbatches);
  Schedule best = unit_costs;
  double shortest = simulate(best, costs).makespan;
  for (const double patience : {0.0, 0.5}) {
    Schedule placed = ParamsPlacer(unit_costs, costs, patience).place();
    if (const double makespan = simulate(placed, costs).makespan; makespan < shortest) {
      shortest = makespan;
      best = std::move(placed);
    }
  }
  return best;
}

}  // namespace chassis
