// The first failure of a run, which ends all ranks through the store. Used by the ranks and by their parent process.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/store.hpp"

namespace chassis {

// A process that could not become a rank.
inline constexpr int kNoRank = std::numeric_limits<int>::max();

struct Failure {
  int rank = 0;
  ExitCode code = ExitCode::kInternal;
  std::string text;  // names the rank
};

// Only the first failure of a run is kept. Returns whether this is the first.
bool post_failure(Store& store, const Failure& failure);
std::optional<Failure> find_failure(Store& store);

// Joins texts into one, each preceded by its length.
std::string pack(const std::vector<std::string>& texts);
// Splits a packed text. A malformed text or another number of parts is a communication error: any program that reaches
// the port can write to the store.
std::vector<std::string> unpack(const std::string& packed, std::optional<size_t> count = std::nullopt);
// A whole number from `min` to `max`; anything else is a communication error that names `what`.
int number_from_store(const std::string& text, int min, int max, const std::string& what);
// The same for an exit code of this program.
ExitCode exit_code_from_store(const std::string& text);

}  // namespace chassis
