// How a rank that failed ends the whole run: what it left in the store. Shared by the ranks and the process that
// started them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/store.hpp"

namespace chassis {

struct Failure {
  int rank = 0;
  ExitCode code = ExitCode::kInternal;
  std::string text;  // names the rank
};

// Only the first of a run is kept. Returns whether this was it.
bool post_failure(Store& store, const Failure& failure);
std::optional<Failure> find_failure(Store& store);

// Texts in one, each with its length in front.
std::string pack(const std::vector<std::string>& texts);
// What is no such text, or holds another number of them, is a communication error: anyone who reaches the port can
// write into the store.
std::vector<std::string> unpack(const std::string& packed, std::optional<size_t> count = std::nullopt);
// A whole number within bounds; anything else is a communication error that names `what`.
int number_from_store(const std::string& text, int min, int max, const std::string& what);
// An exit code of this program, likewise.
ExitCode exit_code_from_store(const std::string& text);

}  // namespace chassis
