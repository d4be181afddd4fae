// Dependencies of entries.
#include "host/state/schedule_order.hpp"

#include <utility>

namespace chassis {

ScheduleOrder::ScheduleOrder(const Schedule& schedule) : schedule_(schedule) {
  const Entries none(index(schedule.stages.num_stages(), 0), -1);
  forward_ = backward_ = backward_params_ = none;
  for (int rank = 0; rank < schedule.stages.num_ranks(); ++rank)
    for (int entry = static_cast<int>(list(rank).size()) - 1; entry >= 0; --entry) {
      const Work& work = list(rank)[static_cast<size_t>(entry)];
      Entries& entries = work.kind == Work::Kind::kForward          ? forward_
                         : work.kind == Work::Kind::kBackwardParams ? backward_params_
                                                                    : backward_;
      entries[index(schedule.stages.stage(rank, work.chunk), work.microbatch)] = entry;
    }
}

WorkPlace ScheduleOrder::place(const Entries& entries, int stage, int microbatch) const {
  const int entry = entries[index(stage, microbatch)];
  return entry < 0 ? WorkPlace{} : WorkPlace{schedule_.stages.rank(stage), entry};
}

ScheduleOrder::Needs ScheduleOrder::needs(WorkPlace at) const {
  const int stage = this->stage(at), last_stage = schedule_.stages.num_stages() - 1;
  const int microbatch = work(at).microbatch;
  switch (work(at).kind) {
    case Work::Kind::kForward:
      return {{}, stage > 0 ? forward(stage - 1, microbatch) : WorkPlace{}};
    case Work::Kind::kBackward:
    case Work::Kind::kBackwardInputs:
      return {forward(stage, microbatch), stage < last_stage ? backward(stage + 1, microbatch) : WorkPlace{}};
    case Work::Kind::kBackwardParams:
      break;
  }
  return {backward(stage, microbatch), {}};
}

WorkPlace ScheduleOrder::missing(WorkPlace at, const std::vector<int>& num_run) const {
  const Needs needs = this->needs(at);
  for (const WorkPlace need : {needs.own, needs.neighbour})
    if (need.exists() && need.entry >= num_run[static_cast<size_t>(need.rank)]) return need;
  return {};
}

std::vector<int> ScheduleOrder::run(const std::function<void(WorkPlace)>& visit) const {
  const int num_ranks = schedule_.stages.num_ranks();
  std::vector<int> num_run(static_cast<size_t>(num_ranks)), runnable;
  // By rank: the ranks that wait for one of its entries.
  std::vector<std::vector<std::pair<int, WorkPlace>>> waiting(static_cast<size_t>(num_ranks));
  for (int rank = num_ranks - 1; rank >= 0; --rank) runnable.push_back(rank);
  while (!runnable.empty()) {
    const int rank = runnable.back();
    runnable.pop_back();
    int& next = num_run[static_cast<size_t>(rank)];
    for (; next < static_cast<int>(list(rank).size()); ++next) {
      if (const WorkPlace need = missing({rank, next}, num_run); need.exists()) {
        waiting[static_cast<size_t>(need.rank)].emplace_back(rank, need);
        break;
      }
      visit({rank, next});
    }
    std::erase_if(waiting[static_cast<size_t>(rank)], [&](const std::pair<int, WorkPlace>& waiter) {
      if (waiter.second.entry >= next) return false;
      runnable.push_back(waiter.first);
      return true;
    });
  }
  return num_run;
}

}  // namespace chassis
