// A row of values as text with eight heights.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace chassis {

// Returns as many characters as there are values, but at most `width`: "▁▂▅█"; without `unicode`, digits 0 to 7. Values
// that are not finite are spaces.
std::string sparkline(std::span<const float> values, size_t width, bool unicode = true);

}  // namespace chassis
