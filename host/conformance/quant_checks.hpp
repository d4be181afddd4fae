// Conformance tests of a quant plugin: what the host relies on when it cuts, quantizes and saves a parameter in parts.
#pragma once

#include <string>
#include <vector>

#include "host/compile/quant_plugin.hpp"

namespace chassis {

// [step] All failures; empty if none. Neither instance must have been configured. Tests, on weights of several shapes:
//   - the plugin stores the weight of a linear, and describes its components alike each time
//   - parts that are encoded separately, in any order, cut at every legal place, give the bytes of the whole; so does a
//     repetition, whatever the components hold before
//   - decoded parts are the whole's, and not far from what was encoded
//   - NaN and infinities are refused; components that were encoded are not, and those with a NaN that would become a
//     weight are
//   - the text for files is read again, and refused for other sizes; another instance takes the configuration
std::vector<std::string> quant_failures(const QuantPlugin& plugin, const QuantPlugin& another);

}  // namespace chassis
