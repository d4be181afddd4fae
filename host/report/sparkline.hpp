// A row of values as text of eight heights.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace chassis {

// As many characters as there are values, or `width` if that is less: "▁▂▅█"; without `unicode`, digits 0 to 7. Values
// that are not finite are spaces.
std::string sparkline(std::span<const float> values, size_t width, bool unicode = true);

}  // namespace chassis
