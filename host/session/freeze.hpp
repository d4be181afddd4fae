// [freeze]: which parameters are trained.
#pragma once

#include "host/compile/parameters.hpp"
#include "host/config/settings.hpp"

namespace chassis {

// Marks the parameters that [freeze] excludes from training; train_only never excludes the head that an objective
// added. Throws a config error for a pattern that matches no name, if freeze.patterns matches that head, and if no
// parameter is left to train.
void freeze(const Settings::Freeze& settings, ParameterTable& parameters);
// Marks all parameters as not trained.
void freeze_all(ParameterTable& parameters);

}  // namespace chassis
