// Errors of CUDA and of NCCL, one row each: two ranks train with the plugin nccl on the fakes of
// tests/support/fake_cuda, and one of them gets the error. Both end within 8 s with its rank, call and cause, and the
// last checkpoint is whole.
#include <driver_types.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "host/base/error.hpp"
#include "tests/regress/fault_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kLongestSeconds = 32.0;
#else
constexpr double kLongestSeconds = 8.0;
#endif

const std::string kToml = R"(schema_version = 1
[run]
output_dir = "run"
max_steps = 4
seed = 5
threads = 1
device = "cpu"
)" + kFaultRun + R"([checkpoint]
every_steps = 2
async = false
[export]
when = "never"
[comm]
plugin = "nccl_on_cpu"
library = ")" CHASSIS_TEST_BINARY_DIR R"(/tests/fake_nccl/libnccl.so.2"
[[parallel]]
plugin = "fsdp2"
)";

class RunOnFakes {
 public:
  RunOnFakes() {
    write_text(folder_ / "run.toml", kToml);
    write_tokens(folder_ / "tokens.jsonl", 101);
  }

  // `fault` as in tests/support/fake_cuda/fault.hpp; empty: none.
  Outcome train(const std::string& fault, int timeout_s = 60) const {
    const Words command = {CHASSIS_PROGRAM, "train",
                           "run.toml",      "comm.timeout_s=" + std::to_string(timeout_s),
                           "--nproc",       "2",
                           "--plugin-path", CHASSIS_TEST_PLUGIN_DIR,
                           "--plugin-path", CHASSIS_TEST_BINARY_DIR "/tests/fake_cuda"};
    return Process(command, folder_.path(), {{"FAKE_CUDA_FAULT", fault}}).wait();
  }
  Outcome verify() const {
    return run_process({CHASSIS_PROGRAM, "ckpt", "verify", "run", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR},
                       folder_.path());
  }
  std::string file(const std::string& name) const { return text_of_file(folder_ / name); }
  bool has(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

 private:
  ScratchDirectory folder_;
};

struct NcclFault {
  std::string name;
  std::string call;  // this one of a function, counted from 1, gives `result`
  int result;
  bool is_late;  // calls are counted from the checkpoint of step 2
  ExitCode code;
  Words texts;           // of the error
  std::string reporter;  // "rank ": either, since both wait equally long

  bool is_endless() const { return name.starts_with("endless"); }

  friend void PrintTo(const NcclFault& fault, std::ostream* out) { *out << fault.name; }
};

std::vector<NcclFault> nccl_faults() {
  const bool early = false, late = true;
  const ExitCode comm = ExitCode::kCommunication, memory = ExitCode::kOutOfMemory, plugin = ExitCode::kPlugin;
  const std::string in_create = "plugin 'nccl_on_cpu' 0.1.0 in create_group", call = "all_gather of ";
  std::vector<NcclFault> rows;
  const auto add = [&](const char* name, const char* fault, int result, bool is_late, ExitCode code, Words texts,
                       const char* reporter = "rank 1") {
    rows.push_back({name, fault, result, is_late, code, std::move(texts), reporter});
  };
  add("no_memory_for_a_group", "cudaMalloc 1", cudaErrorMemoryAllocation, early, memory,
      Words{in_create + ": cudaMalloc: out of memory"});
  add("no_connection", "ncclCommInitRankConfig 1", ncclSystemError, early, comm,
      Words{in_create + ": ncclCommInitRankConfig: unhandled system error"});
  add("endless_connection", "ncclCommGetAsyncError 1", ncclInProgress, early, comm, Words{in_create}, "rank ");
  add("no_memory_in_a_step", "cudaEventCreateWithFlags 1", cudaErrorMemoryAllocation, early, memory,
      Words{"in start, step 1: cudaEventCreate: out of memory (call: " + call});
  add("ecc", "cudaEventRecord 5", cudaErrorECCUncorrectable, late, plugin,
      Words{"in start, step 3: cudaEventRecord: uncorrectable ECC error encountered (call: " + call});
  add("launch_failure", "cudaEventQuery 10", cudaErrorLaunchFailure, late, plugin,
      Words{"in wait, step 3: a collective failed: unspecified launch failure (call: " + call});
  add("remote_error", "ncclAllGather 3", ncclRemoteError, late, comm,
      Words{"a rank went away in " + call, "ncclAllGather: remote process exited or there was a network error"});
  add("late_remote_error", "ncclCommGetAsyncError 5", ncclRemoteError, late, comm,
      Words{"a rank went away in " + call, "NCCL: remote process exited or there was a network error"});
  add("endless_start", "ncclCommGetAsyncError 5", ncclInProgress, late, comm, Words{call}, "rank ");
  add("endless_collective", "collective 5", 1, late, comm, Words{call, " was not done within 3 s"}, "rank ");
  return rows;
}

class NcclFaults : public testing::TestWithParam<NcclFault> {};

TEST_P(NcclFaults, EndAllRanksWithRankCallAndCause) {
  const NcclFault& fault = GetParam();
  const RunOnFakes run;
  const Outcome outcome = run.train(
      "1 " + fault.call + " " + std::to_string(fault.result) + (fault.is_late ? " run/checkpoints/step-000002" : ""),
      fault.is_endless() ? 3 : 60);
  const auto end = Clock::now();
  EXPECT_EQ(outcome.exit_code, static_cast<int>(fault.code)) << outcome.output;
  for (const std::string& text : fault.texts) EXPECT_HAS(outcome.output, text);
  EXPECT_HAS(outcome.output, "stopped: " + fault.reporter);
  const size_t at = outcome.output.find("fault of ");
  ASSERT_NE(at, std::string::npos) << outcome.output;
  const Clock::time_point began(
      std::chrono::nanoseconds(std::stoll(outcome.output.substr(outcome.output.find(" at ", at) + 4))));
  EXPECT_LE(std::chrono::duration<double>(end - began).count(), kLongestSeconds) << outcome.output;

  EXPECT_EQ(run.has("run/checkpoints/step-000002"), fault.is_late);
  if (fault.is_late) {
    EXPECT_HAS(run.verify().output, "ok run/checkpoints/step-000002: ");
  }
}

INSTANTIATE_TEST_SUITE_P(Each, NcclFaults, testing::ValuesIn(nccl_faults()),
                         [](const auto& row) { return row.param.name; });

TEST(NcclRun, GoesOnFromTheLastCheckpoint) {
  const RunOnFakes whole, broken;
  EXPECT_EQ(whole.train("").exit_code, 0);
  EXPECT_EQ(broken.train("1 cudaEventQuery 10 719 run/checkpoints/step-000002").exit_code, 3);
  const Outcome rest = broken.train("");
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  for (const char* shard : {"1", "2"}) {
    const std::string file =
        std::string("run/checkpoints/step-000004/sharded/shard-0000") + shard + "-model-00001-of-00001.safetensors";
    ASSERT_TRUE(broken.has(file)) << file;
    EXPECT_TRUE(broken.file(file) == whole.file(file)) << file;
  }
}

}  // namespace
}  // namespace chassis::test
