// A run of the program on the simulated devices of tests/support/simulated_device, or on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/regress/fault_run.hpp"
#include "tests/support/largest_relative.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

using Words = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

struct Numbers {
  std::vector<double> losses, grad_norms, evaluations;
  double peak_bytes = 0;
};

class SimulatedRun {
 public:
  // `more` is appended to the configuration.
  explicit SimulatedRun(const std::string& more = "") {
    write_tokens(folder_ / "tokens.jsonl", 101);
    write_text(folder_ / "run.toml", kHead + kFaultRun + kTail + more);
  }

  const ScratchDirectory& folder() const { return folder_; }

  Outcome verb(const std::string& name, Words words, const Variables& variables = {}) const {
    words.insert(words.begin(), {CHASSIS_PROGRAM, name});
    for (const char* plugins :
         {CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR, CHASSIS_TEST_BINARY_DIR "/tests/simulated_kernels",
          CHASSIS_TEST_BINARY_DIR "/tests/simulated_nccl"})
      if (std::filesystem::exists(plugins)) words.insert(words.end(), {"--plugin-path", plugins});
    return run_process(words, folder_.path(), variables);
  }
  // The run's directory has the name of the device unless `directory` names another.
  Outcome start(const std::string& device, const Words& overrides, const Variables& variables = {},
                const std::string& directory = "") const {
    const std::string output = directory.empty() ? device : directory;
    Words words = {"run.toml", "run.device=" + device, "run.output_dir=" + output};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return verb("train", words, variables);
  }
  Numbers train(const std::string& device, const Words& overrides, const Variables& variables = {},
                const std::string& directory = "") const {
    const std::string output = directory.empty() ? device : directory;
    const Outcome outcome = start(device, overrides, variables, output);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    Numbers read = numbers(output);
    EXPECT_FALSE(read.losses.empty() || read.evaluations.empty()) << outcome.output;
    return read;
  }
  Numbers numbers(const std::string& directory) const {
    Numbers numbers;
    std::istringstream metrics(text_of_file(folder_ / (directory + "/metrics.jsonl")));
    for (std::string line; std::getline(metrics, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (record.contains("grad_norm")) {
        numbers.losses.push_back(record.at("loss"));
        numbers.grad_norms.push_back(record.at("grad_norm"));
        numbers.peak_bytes = record.at("peak_memory_bytes");
      } else {
        numbers.evaluations.push_back(record.at("eval_loss"));
      }
    }
    return numbers;
  }

 private:
  static inline const std::string kHead = R"(schema_version = 1
[run]
max_steps = 4
seed = 5
threads = 1
)";
  static inline const std::string kTail = R"([[data.eval]]
path = "tokens.jsonl"
format = "tokens"
[attention]
plugin = "sdpa"
[kernels]
plugins = ["aten"]
[precision]
compute = "fp32"
[checkpoint]
every_steps = 0
[export]
when = "never"
)";

  ScratchDirectory folder_;
};

// The largest relative difference of a loss, of steps and evaluations.
inline double difference(const Numbers& ours, const Numbers& theirs) {
  return std::max(largest_relative(ours.losses, theirs.losses), largest_relative(ours.evaluations, theirs.evaluations));
}

}  // namespace chassis::test
