// An oracle for the proof of schedules: ranks that run their lists and exchange messages through queues. Written
// without the code that the proof uses.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis::testing {

class ScheduleRun {
 public:
  explicit ScheduleRun(const Schedule& schedule) : schedule_(schedule), num_run_(schedule.ranks.size()) {
    for (bool any = true; any && !failed_;) {
      any = false;
      for (size_t rank = 0; rank < num_run_.size() && !failed_; ++rank)
        while (num_run_[rank] < schedule.ranks[rank].size() && step(static_cast<int>(rank))) {
          ++num_run_[rank];
          any = true;
        }
    }
  }

  // Every entry ran on what it needs, nothing was done twice, and nothing is left to do.
  bool succeeded() const {
    if (failed_) return false;
    for (size_t rank = 0; rank < num_run_.size(); ++rank)
      if (num_run_[rank] < schedule_.ranks[rank].size()) return false;
    for (int stage = 0; stage < schedule_.stages.num_stages(); ++stage)
      for (int m = 0; m < schedule_.num_microbatches; ++m) {
        const bool joint = did(Work::Kind::kBackward, stage, m);
        const bool split = did(Work::Kind::kBackwardInputs, stage, m) && did(Work::Kind::kBackwardParams, stage, m);
        if (!did(Work::Kind::kForward, stage, m) || !(joint || split)) return false;
      }
    return true;
  }
  size_t num_run(int rank) const { return num_run_[static_cast<size_t>(rank)]; }

 private:
  struct Message {
    int stage;  // that receives it
    int microbatch;
    bool operator==(const Message&) const = default;
  };
  using Inbox = std::deque<Message>;

  bool did(Work::Kind kind, int stage, int microbatch) const { return done_.contains({kind, stage, microbatch}); }
  bool did_backward(int stage, int m) const {
    return did(Work::Kind::kBackward, stage, m) || did(Work::Kind::kBackwardInputs, stage, m);
  }
  bool fail() {
    failed_ = true;
    return false;
  }

  // Runs the next entry of a rank; false if it has to wait or cannot ever run.
  bool step(int rank) {
    const Work& work = schedule_.ranks[static_cast<size_t>(rank)][num_run_[static_cast<size_t>(rank)]];
    if (work.chunk < 0 || work.chunk >= schedule_.stages.num_chunks(rank)) return fail();
    if (work.microbatch < 0 || work.microbatch >= schedule_.num_microbatches) return fail();
    const int stage = schedule_.stages.stage(rank, work.chunk), m = work.microbatch;
    if (did(work.kind, stage, m)) return fail();
    const int direction = work.kind == Work::Kind::kForward ? 1 : -1;
    if (work.kind == Work::Kind::kBackwardParams) {
      if (did(Work::Kind::kBackward, stage, m)) return fail();
      if (!did(Work::Kind::kBackwardInputs, stage, m)) return false;
    } else {
      if (direction < 0 && did_backward(stage, m)) return fail();
      if (direction < 0 && !did(Work::Kind::kForward, stage, m)) return false;
      if (!take(rank, stage, m, direction)) return false;
      send(rank, stage + direction, m, direction);
    }
    done_.insert({work.kind, stage, m});
    return true;
  }

  bool is_stage(int stage) const { return stage >= 0 && stage < schedule_.stages.num_stages(); }

  bool take(int rank, int stage, int microbatch, int direction) {
    const int from = stage - direction;
    if (!is_stage(from)) return true;
    const int sender = schedule_.stages.rank(from);
    if (sender == rank)
      return direction > 0 ? did(Work::Kind::kForward, from, microbatch) : did_backward(from, microbatch);
    Inbox& inbox = inboxes_[{sender, rank, direction}];
    if (inbox.empty()) return false;
    if (inbox.front() != Message{stage, microbatch}) return fail();
    inbox.pop_front();
    return true;
  }

  void send(int rank, int stage, int microbatch, int direction) {
    if (!is_stage(stage) || schedule_.stages.rank(stage) == rank) return;
    inboxes_[{rank, schedule_.stages.rank(stage), direction}].push_back({stage, microbatch});
  }

  const Schedule& schedule_;
  std::vector<size_t> num_run_;
  std::set<std::tuple<Work::Kind, int, int>> done_;
  std::map<std::tuple<int, int, int>, Inbox> inboxes_;  // by sender, receiver, direction
  bool failed_ = false;
};

}  // namespace chassis::testing
