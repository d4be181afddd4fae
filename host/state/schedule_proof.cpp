// The proof, and the messages of faults.
#include "host/state/schedule_proof.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "host/base/error.hpp"
#include "host/state/schedule_order.hpp"

namespace chassis {
namespace {

using Kind = Work::Kind;

std::string number(int value) { return std::to_string(value); }

// "entry 3 of rank 1 (forward of chunk 0, micro-batch 2)"
std::string entry_text(const Schedule& schedule, WorkPlace at) {
  const Work& work = schedule.ranks[static_cast<size_t>(at.rank)][static_cast<size_t>(at.entry)];
  return "entry " + number(at.entry) + " of rank " + number(at.rank) + " (" + text(work) + ")";
}

class Faults {
 public:
  explicit Faults(size_t limit) : limit_(limit) {}
  bool full() const { return found_.size() >= limit_; }
  bool empty() const { return found_.empty(); }
  void add(ScheduleFault::Cause cause, WorkPlace at, std::string message) {
    if (!full()) found_.push_back({cause, at.rank, at.entry, std::move(message)});
  }
  std::vector<ScheduleFault> take() { return std::move(found_); }

 private:
  size_t limit_;
  std::vector<ScheduleFault> found_;
};

void check_ranges(const Schedule& schedule, Faults& faults) {
  const StageMap& stages = schedule.stages;
  if (schedule.num_microbatches < 1)
    return faults.add(ScheduleFault::Cause::kOutOfRange, {},
                      "the schedule has " + number(schedule.num_microbatches) + " micro-batches; it needs at least 1");
  if (schedule.ranks.size() != static_cast<size_t>(stages.num_ranks()))
    return faults.add(ScheduleFault::Cause::kOutOfRange, {},
                      "the schedule has lists for " + std::to_string(schedule.ranks.size()) +
                          " ranks, its stages lie on " + number(stages.num_ranks()));
  for (int rank = 0; rank < stages.num_ranks(); ++rank)
    for (int entry = 0; entry < static_cast<int>(schedule.ranks[static_cast<size_t>(rank)].size()); ++entry) {
      const Work& work = schedule.ranks[static_cast<size_t>(rank)][static_cast<size_t>(entry)];
      const auto title = [&] { return "rank " + number(rank) + ", entry " + number(entry) + ": "; };
      if (work.chunk < 0 || work.chunk >= stages.num_chunks(rank))
        faults.add(ScheduleFault::Cause::kOutOfRange, {rank, entry},
                   title() + "chunk " + number(work.chunk) + " does not exist; the rank has " +
                       number(stages.num_chunks(rank)));
      else if (work.microbatch < 0 || work.microbatch >= schedule.num_microbatches)
        faults.add(ScheduleFault::Cause::kOutOfRange, {rank, entry},
                   title() + "micro-batch " + number(work.microbatch) + " does not exist; the schedule has " +
                       number(schedule.num_microbatches));
    }
}

// The entries of one stage for one micro-batch: the first of each kind.
class Duties {
 public:
  Duties() { entries_.fill(-1); }
  int& operator[](Kind kind) { return entries_[static_cast<size_t>(kind)]; }
  int operator[](Kind kind) const { return entries_[static_cast<size_t>(kind)]; }

  // An earlier entry that an entry of this kind repeats; -1 if there is none.
  int repeated(Kind kind) const {
    if (kind != Kind::kForward && (*this)[Kind::kBackward] >= 0) return (*this)[Kind::kBackward];
    if (kind == Kind::kBackward) return std::max((*this)[Kind::kBackwardInputs], (*this)[Kind::kBackwardParams]);
    return (*this)[kind];
  }
  std::string missing() const {
    const bool inputs = (*this)[Kind::kBackwardInputs] >= 0, params = (*this)[Kind::kBackwardParams] >= 0;
    if ((*this)[Kind::kForward] < 0) return "no forward";
    if ((*this)[Kind::kBackward] >= 0 || (inputs && params)) return "";
    if (inputs) return "a backward_inputs without a backward_params";
    if (params) return "a backward_params without a backward_inputs";
    return "no backward";
  }

 private:
  std::array<int, 4> entries_;
};

void check_complete(const Schedule& schedule, Faults& faults) {
  for (int rank = 0; rank < schedule.stages.num_ranks() && !faults.full(); ++rank) {
    const std::vector<Work>& list = schedule.ranks[static_cast<size_t>(rank)];
    const auto num_microbatches = static_cast<size_t>(schedule.num_microbatches);
    std::vector<Duties> all(static_cast<size_t>(schedule.stages.num_chunks(rank)) * num_microbatches);
    for (int entry = 0; entry < static_cast<int>(list.size()); ++entry) {
      const Work& work = list[static_cast<size_t>(entry)];
      Duties& duties = all[static_cast<size_t>(work.chunk) * num_microbatches + static_cast<size_t>(work.microbatch)];
      if (const int first = duties.repeated(work.kind); first >= 0)
        faults.add(ScheduleFault::Cause::kDoubled, {rank, entry},
                   "rank " + number(rank) + ", entry " + number(entry) + ": " + text(work) + " repeats entry " +
                       number(first) + " (" + text(list[static_cast<size_t>(first)]) + ")");
      else
        duties[work.kind] = entry;
    }
    for (size_t k = 0; k < all.size(); ++k)
      if (const std::string missing = all[k].missing(); !missing.empty()) {
        const int chunk = static_cast<int>(k / num_microbatches), microbatch = static_cast<int>(k % num_microbatches);
        faults.add(ScheduleFault::Cause::kMissing, {rank, -1},
                   "rank " + number(rank) + " has " + missing + " of chunk " + number(chunk) + " (stage " +
                       number(schedule.stages.stage(rank, chunk)) + "), micro-batch " + number(microbatch));
      }
  }
}

// The results that pass from one rank to another in one direction.
struct Link {
  std::vector<WorkPlace> sent;   // entries whose results are sent, in the sender's order
  std::vector<WorkPlace> taken;  // entries whose results are taken, in the receiver's order
  std::vector<WorkPlace> takers;
};

void check_links(const Schedule& schedule, const ScheduleOrder& order, Faults& faults) {
  enum Direction { kActivations, kGradients };
  std::map<std::array<int, 3>, Link> links;  // by sender, receiver, direction
  const StageMap& stages = schedule.stages;
  for (int rank = 0; rank < stages.num_ranks(); ++rank)
    for (int entry = 0; entry < static_cast<int>(schedule.ranks[static_cast<size_t>(rank)].size()); ++entry) {
      const WorkPlace at{rank, entry};
      if (order.work(at).kind == Kind::kBackwardParams) continue;
      const Direction direction = order.work(at).kind == Kind::kForward ? kActivations : kGradients;
      const int next_stage = order.stage(at) + (direction == kActivations ? 1 : -1);
      if (next_stage >= 0 && next_stage < stages.num_stages())
        links[{rank, stages.rank(next_stage), direction}].sent.push_back(at);
      if (const WorkPlace from = order.needs(at).neighbour; from.exists()) {
        Link& link = links[{from.rank, rank, direction}];
        link.taken.push_back(from);
        link.takers.push_back(at);
      }
    }
  for (const auto& [ends, link] : links) {
    if (ends[0] == ends[1]) continue;  // handed over within a rank
    const auto differ = std::mismatch(link.taken.begin(), link.taken.end(), link.sent.begin());
    if (differ.first == link.taken.end()) continue;
    const WorkPlace taker = link.takers[static_cast<size_t>(differ.first - link.taken.begin())];
    faults.add(ScheduleFault::Cause::kLinkOrder, taker,
               entry_text(schedule, taker) + " takes the " + (ends[2] == kActivations ? "activations" : "gradients") +
                   " of " + entry_text(schedule, *differ.first) + ", but those of " +
                   entry_text(schedule, *differ.second) +
                   " arrive first; a rank must take what another rank sends in the order of sending");
  }
}

// Follows the chain of waiting ranks from any rank that is stuck until a rank repeats.
void check_deadlock(const Schedule& schedule, const ScheduleOrder& order, Faults& faults) {
  const std::vector<int> num_run = order.run([](WorkPlace) {});
  const auto is_stuck = [&](int rank) {
    return num_run[static_cast<size_t>(rank)] < static_cast<int>(schedule.ranks[static_cast<size_t>(rank)].size());
  };
  int rank = 0;
  while (rank < schedule.stages.num_ranks() && !is_stuck(rank)) ++rank;
  if (rank == schedule.stages.num_ranks()) return;

  std::vector<int> path;
  while (std::find(path.begin(), path.end(), rank) == path.end()) {
    path.push_back(rank);
    rank = order.missing({rank, num_run[static_cast<size_t>(rank)]}, num_run).rank;
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), rank));

  constexpr size_t kShown = 6;
  int64_t num_stuck = 0;
  for (int r = 0; r < schedule.stages.num_ranks(); ++r)
    num_stuck += static_cast<int64_t>(schedule.ranks[static_cast<size_t>(r)].size()) - num_run[static_cast<size_t>(r)];
  std::string cycle;
  for (size_t k = 0; k < path.size() && k < kShown; ++k) {
    const WorkPlace at{path[k], num_run[static_cast<size_t>(path[k])]}, need = order.missing(at, num_run);
    cycle += (k == 0 ? "" : "; ") + entry_text(schedule, at) + " needs " + entry_text(schedule, need) +
             ", which comes after entry " + number(num_run[static_cast<size_t>(need.rank)]) + " of that rank";
  }
  if (path.size() > kShown) cycle += "; and so on over " + std::to_string(path.size()) + " ranks";
  const WorkPlace first{path.front(), num_run[static_cast<size_t>(path.front())]};
  faults.add(ScheduleFault::Cause::kDeadlock, first,
             "rank " + number(first.rank) + ", entry " + number(first.entry) + " never runs, nor do " +
                 std::to_string(num_stuck - 1) + " others, because of a deadlock: " + cycle);
}

}  // namespace

std::vector<ScheduleFault> schedule_faults(const Schedule& schedule, size_t limit) {
  Faults faults(limit);
  check_ranges(schedule, faults);
  if (faults.empty()) check_complete(schedule, faults);
  if (faults.empty()) {
    const ScheduleOrder order(schedule);
    check_links(schedule, order, faults);
    check_deadlock(schedule, order, faults);
  }
  return faults.take();
}

void prove_schedule(const Schedule& schedule) {
  const std::vector<ScheduleFault> found = schedule_faults(schedule);
  if (found.empty()) return;
  std::string message = found.front().message;
  if (found.size() > 1) message += " (and " + std::to_string(found.size() - 1) + " more faults)";
  throw config_error("the pipeline schedule cannot run: " + std::move(message));
}

}  // namespace chassis
