// Converts a member's option schema into the configuration's OptionSpec, and checks values against it.
#pragma once

#include <string>
#include <vector>

#include "chassis/plugin.h"
#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"

namespace chassis {

// Throws a plugin error, which begins with `label`, if the schema is not valid: a default of another type or out of
// range, a duplicate name, choices for a number.
std::vector<OptionSpec> read_option_specs(const chassis_member_t& member, const std::string& label);

// Throws a config error that names the option if the value has another type, is out of range, or not a choice.
void check_option(const OptionSpec& spec, const Json& value, const std::string& label);

// All options at their defaults; throws a config error if an option has none.
Json default_options(const std::vector<OptionSpec>& specs, const std::string& label);

}  // namespace chassis
