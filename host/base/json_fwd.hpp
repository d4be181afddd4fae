// The name of the JSON type without its definition, for headers.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace chassis {
using Json = nlohmann::ordered_json;
}
