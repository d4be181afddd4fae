#include "host/command/command.hpp"
#include "host/mesh/spawn.hpp"

namespace chassis {

void ConfigArguments::add_to(CLI::App& app) {
  app.add_option("config", file, "a TOML file")->required();
  app.add_option("overrides", overrides, "key.path=value, after the file");
  app.add_option("--plugin-path", plugin_path, "folders with plugins, searched first")->allow_extra_args(false);
}

void ConfigArguments::add_ranks_to(CLI::App& app) {
  app.add_option("--nproc", num_ranks, "processes on this machine; default: as torchrun, srun or mpirun started this one")
      ->check(CLI::Range(0, 4096));
}

std::optional<int> ConfigArguments::run_ranks(const std::string& verb, ConfigUse use,
                                              const std::vector<std::string>& more) const {
  if (num_ranks <= 1) return std::nullopt;
  load(use).throw_if_problems();  // once, rather than on every rank
  std::vector<std::string> words = {verb, file};
  words.insert(words.end(), overrides.begin(), overrides.end());
  for (const std::string& folder : plugin_path) words.insert(words.end(), {"--plugin-path", folder});
  words.insert(words.end(), more.begin(), more.end());
  return chassis::run_ranks({.num_ranks = num_ranks}, words);
}

}  // namespace chassis
