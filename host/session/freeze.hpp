// [freeze]: which parameters are trained.
#pragma once

#include "host/compile/parameters.hpp"
#include "host/config/settings.hpp"

namespace chassis {

// Marks the parameters that [freeze] excludes from training. Throws a config error for a pattern that matches no name,
// and if no parameter is left to train.
void freeze(const Settings::Freeze& settings, ParameterTable& parameters);

}  // namespace chassis
