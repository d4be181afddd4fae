// A run of the program on the simulated devices of tests/support/simulated_device, or on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
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

// The dynamic linker reads it when the program is started, also for the process whose copies are the runs.
[[maybe_unused]] inline const int finds_devices =
    setenv("LD_LIBRARY_PATH", CHASSIS_TEST_BINARY_DIR "/tests/simulated_device", 1);

using Words = std::vector<std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

// fp32 differs by the order of sums in attention alone; bf16 by the rounding of every value.
inline constexpr double kFp32 = 2e-6, kBf16 = 2e-3;

inline const std::string kFsdp2 = "[[parallel]]\nplugin = \"fsdp2\"\n",
                         kLoraOfRank4 = "[adapter]\nplugin = \"lora\"\nrank = 4\n",
                         kFourBits = kLoraOfRank4 + "[quant]\nplugin = \"bnb4_simulated\"\n";

// Ranks on two devices exchange by the plugin nccl, which is there if CUDA's headers were when this was built.
inline constexpr const char* kNccl = CHASSIS_TEST_BINARY_DIR "/tests/simulated_nccl/nccl_simulated.so";
inline const Words kOnNccl = {"comm.plugin=nccl_simulated",
                              "comm.library=" CHASSIS_TEST_BINARY_DIR "/tests/fake_nccl/libnccl.so.2"};

inline Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct NamedRun {
  std::string name;
  Words overrides = {};
  std::string toml = {};
  double tolerance = kFp32;
  std::string provider = {};  // that must compute something on the device
  friend void PrintTo(const NamedRun& run, std::ostream* out) { *out << run.name; }
};

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

inline void expect_close(const NamedRun& named, const Numbers& device, const Numbers& host) {
  const double loss = difference(device, host), norm = largest_relative(device.grad_norms, host.grad_norms);
  std::printf("| %s | %.1e | %.1e |\n", named.name.c_str(), loss, norm);
  EXPECT_LE(loss, named.tolerance);
  EXPECT_LE(norm, 10 * named.tolerance);
}

// On one device. With two, a run with a strategy starts two ranks.
inline void expect_the_numbers_of_the_cpu(const NamedRun& named) {
  const SimulatedRun run(named.toml);
  const Numbers device = run.train("cuda", named.overrides, {{"SIMULATED_DEVICES", "1"}}),
                host = run.train("cpu", named.overrides);
  expect_close(named, device, host);
  const std::string lock = text_of_file(run.folder() / "cuda/plugins.lock");
  EXPECT_NE(lock.find(named.provider), std::string::npos) << lock;
}

// Both run two ranks: those on the CPU exchange by gloo.
inline void expect_the_numbers_of_two_cpu_ranks(const NamedRun& named) {
  const SimulatedRun run(named.toml);
  const Words overrides = joined(named.overrides, {"--nproc", "2"});
  const Numbers device = run.train("cuda", joined(kOnNccl, overrides)), host = run.train("cpu", overrides);
  expect_close(named, device, host);
}

}  // namespace chassis::test
