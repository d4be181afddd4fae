// The first failure of a run, in the store.
#include "host/launch/rank_failure.hpp"

namespace chassis {

bool post_failure(Store& store, const RankFailure& failure) {
  constexpr size_t kMaxText = 64 << 10;
  return store.set_once("failure", pack({std::to_string(failure.rank), std::to_string(static_cast<int>(failure.code)),
                                         failure.text.substr(0, kMaxText)}));
}

std::optional<RankFailure> find_failure(Store& store) {
  const auto found = store.find("failure");
  if (!found) return std::nullopt;
  const std::vector<std::string> fields = unpack(*found, 3);
  const int rank = number_from_store(fields[0], 0, std::numeric_limits<int>::max(), "a rank that failed");
  return RankFailure{rank, exit_code_from_store(fields[1]), fields[2]};
}

}  // namespace chassis
