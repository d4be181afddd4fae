// [freeze]: which parameters are trained.
#pragma once

#include "host/config/settings.hpp"
#include "host/program/parameters.hpp"

namespace chassis {

// Marks the parameters that [freeze] leaves out. Throws a config error for a pattern that is found in no name, and if
// nothing is left to train.
void freeze(const Settings::Freeze& settings, ParameterTable& parameters);

}  // namespace chassis
