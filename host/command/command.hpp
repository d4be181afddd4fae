// The verbs of the command line, one file each: add_… declares the arguments and returns the function that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

// The actions of a verb once its arguments are parsed.
class Verb {
 public:
  // Throws, or returns the exit code.
  using Run = std::function<int()>;
  // Returns the exit code of all ranks; nothing in a rank, or if no ranks are to be started.
  using StartRanks = std::function<std::optional<int>()>;

  template <std::invocable Body>
  Verb(Body run) : run_(std::move(run)) {}
  Verb(StartRanks start_ranks, Run run) : start_ranks_(std::move(start_ranks)), run_(std::move(run)) {}

  // Call it first, while the process has only one thread.
  std::optional<int> start_ranks() const { return start_ranks_ ? start_ranks_() : std::nullopt; }
  int run() const { return run_(); }

 private:
  StartRanks start_ranks_;
  Run run_;
};

// Declares --plugin-path, which users may give before the verb, after it or after a subcommand of it; `folders` gets
// all of them in that order.
void add_plugin_path(CLI::App& verb, std::vector<std::string>& folders);
// Declares it for all commands that do not have it yet.
void accept_plugin_path_everywhere(CLI::App& program);

// Refuses what users often give in place of a TOML file, and says what to give.
void refuse_other_than_toml(const std::string& file);

// The arguments of every verb that reads a configuration.
struct ConfigArguments {
  std::string file;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  bool locked = false;
  int num_ranks = 0;  // for verbs that several processes can run; 0: without --nproc
  // For verbs that also take the directory of a run, which stands for its configuration, and a model directory, which
  // stands for one that names the model.
  bool takes_directories = false;

  void add_to(CLI::App& app);
  void add_ranks_to(CLI::App& app);
  // With --nproc, or with [[parallel]] on a machine with several GPUs: starts the ranks, and returns the exit code of
  // the run. Otherwise, and in a rank, returns nothing.
  std::optional<int> run_ranks(ConfigUse use = ConfigUse::kTraining) const;
  // The text is read once, and ranks get it from the process that started them.
  const ConfigSource& source() const;
  Config load(ConfigUse use = ConfigUse::kTraining) const { return load_config(source(), all_overrides(), use); }

 private:
  void find_file();
  std::vector<std::string> all_overrides() const;

  mutable std::optional<ConfigSource> source_;
};

// A hint for an option that the verb does not have: the key of the configuration that the user probably meant, such as
// optimizer.lr=1e-3 for "--lr 1e-3". Empty if the verb reads no configuration, or has all the options.
std::string override_hint(const CLI::App& verb, const std::vector<std::string>& words);

Verb add_init(CLI::App& app);
Verb add_train(CLI::App& app);
Verb add_check(CLI::App& app);
Verb add_plan(CLI::App& app);
Verb add_eval(CLI::App& app);
Verb add_score(CLI::App& app);
Verb add_generate(CLI::App& app);
Verb add_serve(CLI::App& app);
Verb add_ckpt(CLI::App& app);
// Adds `chassis ckpt import-zero`. Its function returns nothing if another subcommand is to run.
std::function<std::optional<int>()> add_ckpt_import(CLI::App& ckpt);
Verb add_report(CLI::App& app);
Verb add_watch(CLI::App& app);
Verb add_ctl(CLI::App& app);
Verb add_data(CLI::App& app);
Verb add_tokenizer(CLI::App& app);
Verb add_plugins(CLI::App& app);
Verb add_schema(CLI::App& app);
Verb add_version(CLI::App& app);
Verb add_completion(CLI::App& app);
std::string version_text();

}  // namespace chassis
