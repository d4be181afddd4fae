// A simulation of ranks that run their lists in order.
#include "host/state/schedule_simulation.hpp"

#include <algorithm>
#include <numeric>

#include "host/base/error.hpp"
#include "host/state/schedule_order.hpp"

namespace chassis {
namespace {

using Kind = Work::Kind;

double duration(Kind kind, const StageCost& cost) {
  switch (kind) {
    case Kind::kForward:
      return cost.forward;
    case Kind::kBackward:
      return cost.backward_inputs + cost.backward_params;
    case Kind::kBackwardInputs:
      return cost.backward_inputs;
    case Kind::kBackwardParams:
      break;
  }
  return cost.backward_params;
}

// The activations that an entry frees when it ends.
double freed(Kind kind, const StageCost& cost) {
  switch (kind) {
    case Kind::kForward:
      return 0.0;
    case Kind::kBackward:
      return cost.activations;
    case Kind::kBackwardInputs:
      return cost.activations - cost.kept_for_params;
    case Kind::kBackwardParams:
      break;
  }
  return cost.kept_for_params;
}

double peak_activations(const Schedule& schedule, int rank, std::span<const StageCost> costs) {
  double held = 0.0, peak = 0.0;
  for (const Work& work : schedule.ranks[static_cast<size_t>(rank)]) {
    const StageCost& cost = costs[static_cast<size_t>(schedule.stages.stage(rank, work.chunk))];
    if (work.kind == Kind::kForward) held += cost.activations;
    peak = std::max(peak, held);
    held -= freed(work.kind, cost);
  }
  return peak;
}

}  // namespace

double Simulation::bubble_share() const {
  const double all = makespan * static_cast<double>(busy.size());
  return all > 0.0 ? 1.0 - std::accumulate(busy.begin(), busy.end(), 0.0) / all : 0.0;
}

Simulation simulate(const Schedule& schedule, std::span<const StageCost> costs) {
  const StageMap& stages = schedule.stages;
  CHASSIS_CHECK(costs.size() == static_cast<size_t>(stages.num_stages()), "one cost for each stage");
  const auto num_ranks = static_cast<size_t>(stages.num_ranks());
  Simulation out;
  out.busy.resize(num_ranks);
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    out.spans.emplace_back(schedule.ranks[rank].size());
    out.peak_activations.push_back(peak_activations(schedule, static_cast<int>(rank), costs));
  }

  const ScheduleOrder order(schedule);
  const auto end = [&](WorkPlace at) {
    return out.spans[static_cast<size_t>(at.rank)][static_cast<size_t>(at.entry)].end;
  };
  const std::vector<int> num_run = order.run([&](WorkPlace at) {
    double start = at.entry > 0 ? end({at.rank, at.entry - 1}) : 0.0;
    const auto [own, neighbour] = order.needs(at);
    if (own.exists()) start = std::max(start, end(own));
    if (neighbour.exists()) {
      const int boundary = std::min(order.stage(at), order.stage(neighbour));
      const double transfer = neighbour.rank == at.rank ? 0.0 : costs[static_cast<size_t>(boundary)].transfer;
      start = std::max(start, end(neighbour) + transfer);
    }
    const double time = duration(order.work(at).kind, costs[static_cast<size_t>(order.stage(at))]);
    out.spans[static_cast<size_t>(at.rank)][static_cast<size_t>(at.entry)] = {start, start + time};
    out.busy[static_cast<size_t>(at.rank)] += time;
    out.makespan = std::max(out.makespan, start + time);
  });
  for (size_t rank = 0; rank < num_ranks; ++rank)
    CHASSIS_CHECK(num_run[rank] == static_cast<int>(schedule.ranks[rank].size()), "a schedule with a deadlock");
  return out;
}

Simulation simulate(const Schedule& schedule, const StageCost& cost) {
  return simulate(schedule, std::vector<StageCost>(static_cast<size_t>(schedule.stages.num_stages()), cost));
}

}  // namespace chassis
