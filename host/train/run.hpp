// Runs a training run, from the configuration to the exported model.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

// [control] Returns 0, or 75 if the run was asked to stop and can be resumed. Throws on any failure.
int run_training(Config config, const std::vector<std::string>& plugin_path);

}  // namespace chassis
