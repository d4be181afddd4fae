// Conformance tests of a quant plugin: what the host relies on when it cuts, quantizes and saves a parameter by parts.
#pragma once

#include <string>
#include <vector>

#include "host/program/quant_plugin.hpp"

namespace chassis {

// [step] All failures; empty if none. `plugin` must not have been configured. Tests, on weights of several shapes:
//   - the plugin stores the weight of a linear, and describes its components alike each time
//   - parts that are encoded separately, cut at every legal place, give the bytes of the whole; so does a repetition
//   - decoded parts are the whole's
//   - NaN and infinities are refused; components that were encoded are not
//   - the text for files is read again, and refused for other sizes
std::vector<std::string> quant_failures(const QuantPlugin& plugin);

}  // namespace chassis
