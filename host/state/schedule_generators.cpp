// Generators of schedules other than ZB-V.
#include "host/state/schedule_generators.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/state/schedule_proof.hpp"

namespace chassis {
namespace {

using Kind = Work::Kind;

Schedule empty_schedule(StageMap stages, int num_microbatches) {
  CHASSIS_CHECK(num_microbatches > 0, "a schedule without micro-batches");
  Schedule out;
  out.num_microbatches = num_microbatches;
  out.ranks.resize(static_cast<size_t>(stages.num_ranks()));
  out.stages = std::move(stages);
  return out;
}

// Megatron's order (schedules.py, get_schedule_table): the k-th forward of every rank.
std::vector<Work> interleaved_forwards(int num_chunks, int num_microbatches, int group_size) {
  std::vector<Work> out;
  for (int first = 0; first < num_microbatches; first += group_size)
    for (int chunk = 0; chunk < num_chunks; ++chunk)
      for (int m = first; m < std::min(first + group_size, num_microbatches); ++m)
        out.push_back({Kind::kForward, chunk, m});
  return out;
}

// Forwards until `num_warmup` are in flight, then one forward and one backward in turn, then the other backwards.
std::vector<Work> in_turn(const std::vector<Work>& forwards, const std::vector<Work>& backwards, size_t num_warmup) {
  std::vector<Work> out;
  for (size_t k = 0; k < forwards.size() + num_warmup; ++k) {
    if (k < forwards.size()) out.push_back(forwards[k]);
    if (k >= num_warmup) out.push_back(backwards[k - num_warmup]);
  }
  return out;
}

[[noreturn]] void refuse(const ScheduleRequest& request, const std::string& why, const std::string& hint = "") {
  Error error = config_error("pipeline schedule '" + request.name + "' " + why);
  if (!hint.empty()) error.hint(hint);
  throw error;
}

void check_numbers(const ScheduleRequest& request) {
  if (request.num_ranks < 1)
    refuse(request, "has " + std::to_string(request.num_ranks) + " ranks; it needs at least 1");
  if (request.num_microbatches < 1)
    refuse(request, "has " + std::to_string(request.num_microbatches) + " micro-batches; it needs at least 1");
  const std::string chunks = std::to_string(request.num_chunks);
  if (request.name == "interleaved") {
    if (request.num_chunks < 2) refuse(request, "needs at least 2 chunks per rank, not " + chunks, "use 1f1b");
  } else if (const int needed = request.name == "zbv" ? 2 : 1; request.num_chunks != needed) {
    refuse(request, "has " + std::to_string(needed) + " chunks per rank, not " + chunks,
           request.name == "zbv" ? "leave out the number of chunks"
                                 : "leave out the number of chunks, or use interleaved");
  }
}

void check_deadlock_of_groups(const ScheduleRequest& request, const Schedule& schedule, int group_size) {
  const std::vector<ScheduleFault> faults = schedule_faults(schedule, 1);
  if (faults.empty()) return;
  const int last = request.num_microbatches % group_size;
  const int num_groups = std::max(1, request.num_microbatches / request.num_ranks);
  refuse(request,
         "with " + std::to_string(request.num_ranks) + " ranks and " + std::to_string(request.num_microbatches) +
             " micro-batches in groups of " + std::to_string(group_size) +
             (last == 0 ? "" : ", the last of " + std::to_string(last) + ",") + " cannot run: " + faults[0].message,
         "use groups of at least " + std::to_string(request.num_ranks) +
             " micro-batches that divide their number, such as " + std::to_string(num_groups * request.num_ranks) +
             " micro-batches in groups of " + std::to_string(request.num_ranks));
}

}  // namespace

Schedule gpipe_schedule(int num_ranks, int num_microbatches) {
  Schedule out = empty_schedule(StageMap::interleaved(num_ranks, 1), num_microbatches);
  for (std::vector<Work>& list : out.ranks) {
    for (int m = 0; m < num_microbatches; ++m) list.push_back({Kind::kForward, 0, m});
    for (int m = 0; m < num_microbatches; ++m) list.push_back({Kind::kBackward, 0, m});
  }
  return out;
}

Schedule one_f_one_b_schedule(int num_ranks, int num_microbatches) {
  return interleaved_schedule(num_ranks, 1, num_microbatches, num_microbatches);
}

Schedule interleaved_schedule(int num_ranks, int num_chunks, int num_microbatches, int group_size) {
  CHASSIS_CHECK(group_size > 0, "groups without micro-batches");
  Schedule out = empty_schedule(StageMap::interleaved(num_ranks, num_chunks), num_microbatches);
  const std::vector<Work> forwards = interleaved_forwards(num_chunks, num_microbatches, group_size);
  std::vector<Work> backwards = forwards;
  for (Work& work : backwards) work = {Kind::kBackward, num_chunks - 1 - work.chunk, work.microbatch};
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int behind = num_ranks - rank - 1;
    const int64_t num_warmup = num_chunks == 1 ? behind : 2 * behind + int64_t{num_chunks - 1} * group_size;
    out.ranks[static_cast<size_t>(rank)] =
        in_turn(forwards, backwards, std::min(static_cast<size_t>(num_warmup), forwards.size()));
  }
  return out;
}

Schedule zb_h1_schedule(int num_ranks, int num_microbatches) {
  Schedule out = one_f_one_b_schedule(num_ranks, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<Work> list;
    for (const Work& work : out.ranks[static_cast<size_t>(rank)]) {
      if (work.kind == Kind::kForward) {
        list.push_back(work);
        continue;
      }
      list.push_back({Kind::kBackwardInputs, 0, work.microbatch});
      if (work.microbatch >= rank) list.push_back({Kind::kBackwardParams, 0, work.microbatch - rank});
    }
    for (int m = std::max(0, num_microbatches - rank); m < num_microbatches; ++m)
      list.push_back({Kind::kBackwardParams, 0, m});
    out.ranks[static_cast<size_t>(rank)] = std::move(list);
  }
  return out;
}

Schedule make_schedule(const ScheduleRequest& request) {
  const int num_ranks = request.num_ranks, num_microbatches = request.num_microbatches;
  constexpr std::string_view kNames[] = {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"};
  if (std::find(std::begin(kNames), std::end(kNames), request.name) == std::end(kNames))
    refuse(request, "does not exist; there are gpipe, 1f1b, interleaved, zb_h1 and zbv");
  check_numbers(request);
  if (request.name == "gpipe") return gpipe_schedule(num_ranks, num_microbatches);
  if (request.name == "1f1b") return one_f_one_b_schedule(num_ranks, num_microbatches);
  if (request.name == "zb_h1") return zb_h1_schedule(num_ranks, num_microbatches);
  if (request.name == "zbv") {
    const std::vector<StageCost> same(static_cast<size_t>(num_ranks) * 2);
    return zbv_schedule(num_ranks, num_microbatches, request.costs.empty() ? same : request.costs);
  }
  const int group_size = request.group_size > 0 ? request.group_size : num_ranks;
  Schedule out = interleaved_schedule(num_ranks, request.num_chunks, num_microbatches, group_size);
  check_deadlock_of_groups(request, out, group_size);
  return out;
}

}  // namespace chassis
