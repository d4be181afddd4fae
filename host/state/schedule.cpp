// Names of entries, and the places of stages.
#include "host/state/schedule.hpp"

#include <algorithm>
#include <set>

#include "host/base/error.hpp"

namespace chassis {

std::string_view kind_name(Work::Kind kind) {
  switch (kind) {
    case Work::Kind::kForward:
      return "forward";
    case Work::Kind::kBackward:
      return "backward";
    case Work::Kind::kBackwardInputs:
      return "backward_inputs";
    case Work::Kind::kBackwardParams:
      return "backward_params";
  }
  return "unknown";
}

std::string text(const Work& work) {
  return std::string(kind_name(work.kind)) + " of chunk " + std::to_string(work.chunk) + ", micro-batch " +
         std::to_string(work.microbatch);
}

std::vector<Work> sequential_schedule(int64_t num_microbatches) {
  std::vector<Work> schedule;
  for (int m = 0; m < num_microbatches; ++m) {
    schedule.push_back({Work::Kind::kForward, 0, m});
    schedule.push_back({Work::Kind::kBackward, 0, m});
  }
  return schedule;
}

std::vector<uint8_t> last_of_chunk(const std::vector<Work>& schedule) {
  std::vector<uint8_t> out(schedule.size());
  std::set<int> seen;
  for (size_t i = schedule.size(); i-- > 0;) {
    const Work& work = schedule[i];
    if (work.kind == Work::Kind::kBackward || work.kind == Work::Kind::kBackwardParams)
      out[i] = seen.insert(work.chunk).second;
  }
  return out;
}

StageMap::StageMap(std::vector<int> ranks) : ranks_(std::move(ranks)) {
  CHASSIS_CHECK(!ranks_.empty(), "a pipeline without stages");
  CHASSIS_CHECK(*std::min_element(ranks_.begin(), ranks_.end()) >= 0, "a stage on a negative rank");
  stages_.resize(static_cast<size_t>(*std::max_element(ranks_.begin(), ranks_.end())) + 1);
  for (int stage = 0; stage < num_stages(); ++stage) {
    std::vector<int>& of_rank = stages_[static_cast<size_t>(rank(stage))];
    chunks_.push_back(static_cast<int>(of_rank.size()));
    of_rank.push_back(stage);
  }
  for (int rank = 0; rank < num_ranks(); ++rank)
    if (num_chunks(rank) == 0)
      throw config_error("rank " + std::to_string(rank) + " of the pipeline has no stage; " +
                         std::to_string(num_stages()) + " stages lie on other ranks");
}

StageMap StageMap::interleaved(int num_ranks, int num_chunks) {
  CHASSIS_CHECK(num_ranks > 0 && num_chunks > 0, "a pipeline without ranks or chunks");
  std::vector<int> ranks(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_chunks));
  for (size_t stage = 0; stage < ranks.size(); ++stage) ranks[stage] = static_cast<int>(stage) % num_ranks;
  return StageMap(std::move(ranks));
}

StageMap StageMap::v_shaped(int num_ranks) {
  CHASSIS_CHECK(num_ranks > 0, "a pipeline without ranks");
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) ranks.push_back(rank);
  for (int rank = num_ranks - 1; rank >= 0; --rank) ranks.push_back(rank);
  return StageMap(std::move(ranks));
}

}  // namespace chassis
