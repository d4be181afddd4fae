#include "host/base/log.hpp"
#include "host/command/command.hpp"
#include "host/mesh/gpus.hpp"
#include "host/mesh/launch.hpp"
#include "host/mesh/spawn.hpp"

namespace chassis {
namespace {

// One per visible GPU, where a strategy is to divide the run and no launcher has started ranks.
int ranks_by_default(const Config& config) {
  if (config.num_problems() > 0 || config.count("parallel") == 0) return 1;
  const std::string& device = config.get_string("run.device");
  if (device != "auto" && device != "cuda") return 1;
  if (!discover_launch(process_environment()).source.empty()) return 1;
  const int num_gpus = num_visible_gpus();
  if (num_gpus > 1) log::info("starting {} processes, one per visible GPU; --nproc sets another number", num_gpus);
  return num_gpus;
}

}  // namespace

void ConfigArguments::add_to(CLI::App& app) {
  app.add_option("config", file, "a TOML file")->required();
  app.add_option("overrides", overrides, "key.path=value, after the file");
  app.add_option("--plugin-path", plugin_path, "folders with plugins, searched first")->allow_extra_args(false);
}

void ConfigArguments::add_ranks_to(CLI::App& app) {
  app.add_option("--nproc", num_ranks,
                 "processes on this machine; default: as torchrun, srun or mpirun started this one, else with "
                 "[[parallel]] one per GPU")
      ->check(CLI::Range(1, 4096));
}

std::optional<int> ConfigArguments::run_ranks(const std::string& verb, ConfigUse use,
                                              const std::vector<std::string>& more) const {
  const Config config = load(use);
  const int count = num_ranks > 0 ? num_ranks : ranks_by_default(config);
  if (count <= 1) return std::nullopt;
  config.throw_if_problems();  // once, rather than on every rank
  std::vector<std::string> words = {verb, file};
  words.insert(words.end(), overrides.begin(), overrides.end());
  for (const std::string& folder : plugin_path) words.insert(words.end(), {"--plugin-path", folder});
  words.insert(words.end(), more.begin(), more.end());
  return chassis::run_ranks(count, words);
}

}  // namespace chassis
