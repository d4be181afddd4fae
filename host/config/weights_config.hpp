// The configuration of a session that reads and writes weights in files and never computes, made from values.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

// The keys that such a session sets; every other key has its default. An empty value leaves its key out.
struct WeightsConfig {
  std::string model;                            // model.path: a model directory or checkpoint
  std::string adapter = {};                     // adapter.path
  std::string adapter_plugin = {};              // adapter.plugin
  bool merges_adapter = false;                  // export.merge
  std::string quant_plugin = {};                // quant.plugin
  std::vector<std::string> quant_options = {};  // "quant.double_quant=true", as the user wrote them
  std::string dtype = "auto";                   // export.dtype
  std::string format = {};                      // export.plugin
};

// On the CPU, with random weights, so that no weight is read. `name` stands for the file in messages; an error in a
// value is at "command line 'KEY=VALUE'". Throws a config error.
Config weights_config(const WeightsConfig& values, const std::string& name);

}  // namespace chassis
