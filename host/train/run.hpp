// A training run from configuration to exported model.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

// [control] Returns 0, or 75 if it was asked to stop and can be resumed. Throws everything else.
int run_training(Config config, const std::vector<std::string>& plugin_path);

}  // namespace chassis
