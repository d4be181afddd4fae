// How a rank that failed ends the whole run: what it left in the store. Shared by the ranks and the process that
// started them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/mesh/store.hpp"

namespace chassis {

struct Failure {
  int rank = 0;
  ExitCode code = ExitCode::kInternal;
  std::string text;  // names the rank
};

// Only the first of a run is kept. Returns whether this was it.
bool post_failure(Store& store, const Failure& failure);
std::optional<Failure> find_failure(Store& store);

// Texts in one, each with its length in front. What unpack is given pack has made: all else is a broken invariant.
std::string pack(const std::vector<std::string>& texts);
std::vector<std::string> unpack(const std::string& packed);

}  // namespace chassis
