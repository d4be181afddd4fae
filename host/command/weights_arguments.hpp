// The arguments of verbs that use trained weights: --from and --no-adapter.
#pragma once

#include <string>

#include "host/command/command.hpp"

namespace chassis {

// The override that replaces the adapter of a configuration with the one in a directory.
std::string adapter_override(const std::string& plugin, const std::string& directory);

struct WeightsArguments {
  std::string from;
  bool no_adapter = false;

  void add_to(CLI::App& app);
  // Call before the configuration is loaded. Adds overrides: an adapter in `from` replaces the configuration's, whose
  // settings may be another adapter's. With --no-adapter, there is none, and `from` becomes model.path if it is empty,
  // names an adapter or belongs to a run.
  void choose_adapter(ConfigArguments& config, ConfigUse use);
};

}  // namespace chassis
