// A small run started by the program, on one process or several.
#pragma once

#include "host/checkpoint/checkpoint_root.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {

// How a run is divided: lines of TOML, and the number of processes.
struct Sharding {
  const char* name = "alone";
  int ranks = 1;
  const char* toml = "";
};

class StartedRun : public SmallRun {
 public:
  // `settings` are overrides for every start, `model` is the text of [model].
  explicit StartedRun(std::vector<std::string> settings, const Providers& providers = {"sdpa", "[\"aten\"]"},
                      const std::string& model = kLlama)
      : SmallRun(providers, model), settings_(std::move(settings)) {
    write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 50, 6}));
  }

  std::string directory(const std::string& name) const { return folder() / name; }
  std::string checkpoint(const std::string& name, int64_t step) const {
    return directory(name) + "/checkpoints/" + step_directory_name(step);
  }
  // The command line that trains into directory(name); `words` are more overrides and options.
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& words,
                                   const Sharding& sharding = {}) const {
    const std::string file = folder() / (std::string(sharding.name) + ".toml");
    write_text(file, std::string("schema_version = 1\nextends = [\"run.toml\"]\n") + sharding.toml);
    std::vector<std::string> all = {CHASSIS_PROGRAM, "train", file, "run.output_dir=" + directory(name)};
    for (const auto* more : {&settings_, &words}) all.insert(all.end(), more->begin(), more->end());
    all.insert(all.end(), {"--nproc", std::to_string(sharding.ranks), "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    return all;
  }
  Outcome start(const std::string& name, const std::vector<std::string>& words, const Sharding& sharding = {}) const {
    return run_process(command(name, words, sharding), folder().path());
  }
  // Expects exit code 0; returns the output.
  std::string train(const std::string& name, const std::vector<std::string>& words,
                    const Sharding& sharding = {}) const {
    const Outcome outcome = start(name, words, sharding);
    EXPECT_EQ(outcome.exit_code, 0) << name << ": " << outcome.output;
    return outcome.output;
  }
  Outcome ckpt(std::vector<std::string> words) const {
    words.insert(words.begin(), {CHASSIS_PROGRAM, "ckpt"});
    return run_process(words, folder().path());
  }

 private:
  std::vector<std::string> settings_;
};

}  // namespace chassis::test
