// Conformance tests of members of kind "rows".
#pragma once

#include <string>
#include <vector>

#include "host/plugin/instance.hpp"

namespace chassis {

// All failures; empty if none. `files`: some that the member reads; may be empty. Tests:
//   - a file that does not exist is NOT_FOUND; an empty file and one of noise are refused with a message, with
//     INVALID_ARGUMENT or DATA_LOSS, or have rows; so are the first parts of each file
//   - the rows of a file are JSON objects of one line, given on the calling thread, as many as open says, with no more
//     bytes than the file has; they are the same for any number of rows per call, with two files open at once (the same
//     or different ones), and in parallel threads
//   - reading a file again and again leaves no memory and no threads
std::vector<std::string> rows_failures(const Instance& instance, const std::vector<std::string>& files);

}  // namespace chassis
