// The arguments of verbs that use trained weights: --from and --no-adapter.
#pragma once

#include <string>

#include "host/command/command.hpp"

namespace chassis {

struct WeightsArguments {
  std::string from;
  bool no_adapter = false;

  void add_to(CLI::App& app);
  // Call before the configuration is loaded. Adds overrides: an adapter in `from` replaces that of the configuration,
  // whose settings may be those of another one; with --no-adapter there is none, and `from` becomes the base.
  void choose_adapter(ConfigArguments& config, ConfigUse use);
};

}  // namespace chassis
