#include <unistd.h>

#include <cstdlib>

#include "host/command/command.hpp"

namespace chassis {

void ConfigArguments::add_to(CLI::App& app) {
  app.add_option("config", file, "a TOML file")->required();
  app.add_option("overrides", overrides, "key.path=value, after the file");
  app.add_option("--plugin-path", plugin_path, "folders with plugins, searched first")->allow_extra_args(false);
}

void restart_with_passive_waiting(char** argv) {
  if (getenv("OMP_WAIT_POLICY")) return;
  setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
  execv("/proc/self/exe", argv);  // on failure go on: it is a matter of speed alone
}

}  // namespace chassis
