// Conformance tests of members of kind "rows".
#pragma once

#include <string>
#include <vector>

#include "host/plugin/instance.hpp"

namespace chassis {

// All failures; empty if none. `file`: one that the member reads; may be empty. Tests:
//   - a file that is not there is NOT_FOUND; an empty one and one of noise are refused in words, with INVALID_ARGUMENT
//   or
//     DATA_LOSS, or have rows; so are the first halves of `file`
//   - the rows of `file` are JSON objects, as many as open says, and the same for any number of rows per call, in two
//     files that are open at once, and in parallel threads
std::vector<std::string> rows_failures(const Instance& instance, const std::string& file);

}  // namespace chassis
