// The error for a row without a key that its format needs.
#pragma once

#include <string_view>

#include "host/data/json_row.hpp"

namespace chassis {

// The error for a missing key that the format needs. Hints at the format that the row looks like, or at `columns`.
Error missing_key_error(DataFormat format, const RowFields& row, std::string_view name);

}  // namespace chassis
