// A run that was interrupted and resumed ends in the bits of one that was not: losses, weights, optimizer states.
#include <nlohmann/json.hpp>

#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

class Resume : public WithProviders {
 protected:
  Resume() : run_(GetParam()) { run_.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 50, 6})); }

  std::vector<std::string> command(const std::string& name, std::vector<std::string> overrides) const {
    std::vector<std::string> words = {CHASSIS_PROGRAM, "train", run_.config_path(), "run.output_dir=" + directory(name),
                                      "train.micro_batch_size=2", "train.global_batch_size=4"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    return words;
  }
  std::string directory(const std::string& name) const { return run_.folder() / name; }
  void run(const std::string& name, const std::vector<std::string>& overrides) const {
    const Outcome outcome = run_process(command(name, overrides), run_.folder().path());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }

  // Without what the clock and the machine say.
  std::vector<std::string> steps(const std::string& name) const {
    std::vector<std::string> lines;
    std::ifstream file(directory(name) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      std::string kept;
      for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "trained_tokens"}) kept += json.at(key).dump() + " ";
      lines.push_back(kept);
    }
    return lines;
  }

  void expect_same_end(const std::string& ours, const std::string& theirs, int64_t num_steps) const {
    EXPECT_EQ(steps(ours), steps(theirs));
    EXPECT_EQ(steps(theirs).size(), static_cast<size_t>(num_steps));
    size_t compared = 0;
    const std::string end = "/checkpoints/" + std::string("step-") + std::string(6 - std::to_string(num_steps).size(), '0') +
                            std::to_string(num_steps);
    for (const std::string& part : {end, std::string("/final")})
      for (const auto& entry : fs::recursive_directory_iterator(directory(theirs) + part)) {
        if (entry.path().extension() != ".safetensors") continue;
        const std::string name = fs::relative(entry.path(), directory(theirs)).string();
        EXPECT_TRUE(text_of_file(directory(ours) + "/" + name) == text_of_file(entry.path().string())) << name;
        ++compared;
      }
    EXPECT_GE(compared, 2u);
  }

  SmallRun run_;
};
INSTANTIATE_TEST_SUITE_P(, Resume, testing::Values(Providers{"sdpa", "[\"aten\"]"}, Providers{"interval", "[\"fused\", \"aten\"]"}));

TEST_P(Resume, TwiceFiveStepsAreTenSteps) {
  const std::string warmup = "schedule.warmup_steps=4";
  run("whole", {"run.max_steps=10", warmup});
  run("halves", {"run.max_steps=5", warmup});
  run("halves", {"run.max_steps=10", warmup});
  expect_same_end("halves", "whole", 10);
}

TEST_P(Resume, ARunStoppedBySigtermEndsLikeOneThatWasNot) {
  const std::vector<std::string> overrides = {"run.max_steps=40", "schedule.name=cosine", "data.packing=none",
                                              "data.overflow=truncate"};
  run("whole", overrides);
  int stops = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    fs::remove(run_.folder() / "output.txt");  // not to take the words of the last attempt for this one's
    Process process(command("stopped", overrides), run_.folder().path());
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
