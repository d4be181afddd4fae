// Whether a checkpoint format gives back what it took, through the same engine that saves and loads a run.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"

namespace chassis {

// [io] Everything that is wrong; empty if nothing is. Works in a temporary directory, in well under a second.
//   - a layout is a function of its request
//   - tensors of every dtype, of no dims, of no elements and with a name that needs quoting come back, names and bytes,
//     with the manifest and without it; a format may refuse what it can not hold, but not fp32
//   - so do tensors of which two ranks hold a part, unless the format refuses parts
//   - a file that is cut off is refused in words
//   - what is only written passes the verification of its checksums; what is only read tells an empty directory
std::vector<std::string> format_failures(const FormatPlugin& format);

}  // namespace chassis
