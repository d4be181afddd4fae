// Conformance tests of a checkpoint format, through the engine that saves and loads checkpoints.
#pragma once

#include <string>
#include <vector>

#include "host/checkpoint/format_plugin.hpp"

namespace chassis {

// [io] All failures; empty if none. Works in a temporary directory; takes well under a second. Tests:
//   - the same request always has the same layout
//   - tensors of every dtype, without dims, without elements and with a name that needs quoting are loaded with the
//     saved names and bytes, with the manifest and without it; a format may refuse tensors that it cannot store, but
//     not fp32
//   - the same for tensors that two ranks hold in parts, unless the format refuses parts
//   - a truncated file is refused with a message
//   - files of a write-only format pass the verification of checksums; a read-only format refuses an empty directory
std::vector<std::string> format_failures(const FormatPlugin& format);

}  // namespace chassis
