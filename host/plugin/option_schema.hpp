// A member's option schema as the configuration knows options.
#pragma once

#include <string>
#include <vector>

#include "chassis/plugin.h"
#include "host/base/json_fwd.hpp"
#include "host/config/option.hpp"

namespace chassis {

// Throws a plugin error if the schema contradicts itself: a default of another type or outside the range, a name twice,
// choices of numbers. `who` begins the message.
std::vector<OptionSpec> read_option_specs(const chassis_member_t& member, const std::string& who);

// Throws a config error that names the option if the value has another type, is out of range, or no choice.
void check_option(const OptionSpec& spec, const Json& value, const std::string& who);

// Every option with its default; throws a config error for one that has none.
Json default_options(const std::vector<OptionSpec>& specs, const std::string& who);

}  // namespace chassis
