// The first failure of a run, which ends all ranks through the store. Used by the ranks and by their parent process.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/packed_text.hpp"
#include "host/launch/store.hpp"

namespace chassis {

// A process that could not become a rank.
inline constexpr int kNoRank = std::numeric_limits<int>::max();

struct RankFailure {
  int rank = 0;
  ExitCode code = ExitCode::kInternal;
  std::string text;  // names the rank
};

// Only the first failure of a run is kept. Returns whether this is the first.
bool post_failure(Store& store, const RankFailure& failure);
std::optional<RankFailure> find_failure(Store& store);

}  // namespace chassis
