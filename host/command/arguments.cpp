#include "host/command/command.hpp"

namespace chassis {

void ConfigArguments::add_to(CLI::App& app) {
  app.add_option("config", file, "a TOML file")->required();
  app.add_option("overrides", overrides, "key.path=value, after the file");
  app.add_option("--plugin-path", plugin_path, "folders with plugins, searched first")->allow_extra_args(false);
}

}  // namespace chassis
