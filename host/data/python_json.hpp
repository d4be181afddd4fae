// JSON as Python's json.dumps(value, ensure_ascii=False) writes it, which is what chat templates show to models.
#pragma once

#include <string>

#include "host/base/json_fwd.hpp"

namespace chassis {

std::string python_json(const Json& value, bool has_wide_integers = false);

}  // namespace chassis
