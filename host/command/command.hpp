// The verbs of the command line, one file each: add_… declares the arguments, and what it returns runs the verb.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

// Throws, or returns the exit code.
using Verb = std::function<int()>;

// What every verb that reads a configuration takes.
struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  int num_ranks = 0;  // of verbs that several processes can run; 0: --nproc is not given

  void add_to(CLI::App& app);
  void add_ranks_to(CLI::App& app);
  // With --nproc, or with [[parallel]] on a machine of several GPUs: starts the ranks, each with the verb, these arguments
  // and `more`, and returns the exit code of the run.
  std::optional<int> run_ranks(const std::string& verb, ConfigUse use = ConfigUse::kTraining,
                               const std::vector<std::string>& more = {}) const;
  Config load(ConfigUse use = ConfigUse::kTraining) const { return load_config(file, overrides, use); }
};

Verb add_train(CLI::App& app);
Verb add_check(CLI::App& app);
Verb add_plan(CLI::App& app);
Verb add_eval(CLI::App& app);
Verb add_generate(CLI::App& app);
Verb add_ckpt(CLI::App& app);
Verb add_plugins(CLI::App& app);
Verb add_schema(CLI::App& app);
Verb add_version(CLI::App& app);

}  // namespace chassis
