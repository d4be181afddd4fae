// An interrupted and resumed run ends with the same bits as an uninterrupted one: losses, weights, optimizer states.
#include <nlohmann/json.hpp>

#include "tests/regress/started_run.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

class Resume : public WithProviders, protected StartedRun {
 protected:
  Resume() : StartedRun({"train.micro_batch_size=2", "train.global_batch_size=4"}, GetParam()) {}

  // The metrics of each step, without timings and memory.
  std::vector<std::string> steps(const std::string& name) const {
    std::vector<std::string> lines;
    std::ifstream file(directory(name) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      std::string kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "trained_tokens"})
        kept += json.at(key).dump() + " ";
      lines.push_back(kept);
    }
    return lines;
  }

  void expect_same_end(const std::string& ours, const std::string& theirs, int64_t num_steps) const {
    EXPECT_EQ(steps(ours), steps(theirs));
    EXPECT_EQ(steps(theirs).size(), static_cast<size_t>(num_steps));
    size_t compared = 0;
    for (const std::string& part : {"/checkpoints/" + step_directory_name(num_steps), std::string("/final")})
      for (const auto& entry : fs::recursive_directory_iterator(directory(theirs) + part)) {
        if (entry.path().extension() != ".safetensors") continue;
        const std::string name = fs::relative(entry.path(), directory(theirs)).string();
        EXPECT_TRUE(text_of_file(directory(ours) + "/" + name) == text_of_file(entry.path().string())) << name;
        ++compared;
      }
    EXPECT_GE(compared, 2u);
  }
};
INSTANTIATE_TEST_SUITE_P(, Resume,
                         testing::Values(Providers{"sdpa", "[\"aten\"]"},
                                         Providers{"interval", "[\"fused\", \"aten\"]"}));

TEST_P(Resume, TwiceFiveStepsEqualTenSteps) {
  const std::string warmup = "schedule.warmup_steps=4";
  train("whole", {"run.max_steps=10", warmup});
  train("halves", {"run.max_steps=5", warmup});
  train("halves", {"run.max_steps=10", warmup});
  expect_same_end("halves", "whole", 10);
}

TEST_P(Resume, ARunStoppedBySigtermEndsLikeAnUninterruptedOne) {
  const std::vector<std::string> overrides = {"run.max_steps=40", "schedule.name=cosine", "data.packing=none",
                                              "data.overflow=truncate"};
  train("whole", overrides);
  int stops = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    fs::remove(folder() / "output.txt");  // wait_for must not match the output of the last attempt
    Process process(command("stopped", overrides), folder().path());
    if (stops < 2 && process.wait_for("step ")) process.send(SIGTERM);
    const Outcome outcome = process.wait();
    if (outcome.exit_code == 0) break;
    ASSERT_EQ(outcome.exit_code, 75) << outcome.output;
    ++stops;
  }
  EXPECT_GE(stops, 1);
  expect_same_end("stopped", "whole", 40);
}

}  // namespace
}  // namespace chassis::test
