// A run is read whatever state its files are in, and followed while they grow.
#include "host/report/run_reader.hpp"

#include <gtest/gtest.h>

#include "host/base/json.hpp"
#include "host/report/run_light.hpp"
#include "host/report/run_summary.hpp"
#include "tests/host/report/run_folder.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using test::append;
using test::metrics_line;
using test::write_run;
using test::write_text;

class RunReaderTest : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_ / name; }
  test::ScratchDirectory folder_;
};

TEST_F(RunReaderTest, ReadsAFinishedRun) {
  write_run(at("a"), "first", 50);
  const RunReader run(at("a"));
  EXPECT_EQ(run.name(), "first");
  EXPECT_EQ(run.history().last_step(), 50);
  EXPECT_EQ(run.evaluations().size(), 10u);
  EXPECT_EQ(run.state(), RunStatus::kDone);
  EXPECT_EQ(run.max_steps(), 50);
  EXPECT_EQ(run.seconds(), 60.0);
  ASSERT_EQ(run.warnings().size(), 1u);
  EXPECT_EQ(run.warnings()[0].second, 7u);
  EXPECT_TRUE(run.defects().empty());
  const auto config = config_of(run);
  ASSERT_EQ(config.size(), 2u);
  EXPECT_EQ(config[0].key, "optimizer.lr");
  EXPECT_EQ(config[0].origin, "run.toml:3:1");
  EXPECT_EQ(config[1].key, "data.train.0.path");
  EXPECT_EQ(config[1].value, "\"a # b\"");
}

TEST_F(RunReaderTest, ReadsScoresApartFromLosses) {
  write_run(at("a"), "first", 20);
  const auto line = [](int64_t step, const std::string& rest) {
    return "{\"step\":" + std::to_string(step) + ",\"eval\":\"sums\"," + rest + ",\"seconds\":0.5}\n";
  };
  append(at("a/metrics.jsonl"), line(20, "\"score\":0.25,\"passed\":1,\"rows\":4,\"cut\":2") +
                                    line(21, "\"score\":0.75,\"passed\":3,\"rows\":4,\"cut\":0") +
                                    line(22, "\"score\":0.5,\"passed\":-2,\"rows\":1e99,\"cut\":null"));
  const RunReader run(at("a"));
  EXPECT_EQ(run.evaluations().size(), 10u);
  ASSERT_EQ(run.scores().size(), 3u);
  EXPECT_EQ(run.scores()[0].num_cut, 2u);
  EXPECT_EQ(run.scores()[2].num_passed, 0u) << "a count that cannot be";
  EXPECT_HAS(summary_text(run, {}), "  score          0.5000 sums  0 of 0 passed, 0 cut, highest 0.7500 at step 21");
  EXPECT_EQ(summary_json({&run})["runs"][0]["scores"][1]["passed"], 3);
}

TEST_F(RunReaderTest, DrawsTheLoadOfExpertsByLayer) {
  write_run(at("a"), "first", 20);
  const auto layer = [](const std::string& name, double load, int idle) {
    return ",\"router/" + name + "/max_load\":" + std::to_string(load) + ",\"router/" + name +
           "/idle_experts\":" + std::to_string(idle);
  };
  for (const int64_t step : {21, 30}) {
    std::string text = metrics_line(step);
    text.insert(text.find('}'), layer("layers.0", 1.5, 0) + layer("layers.1", step == 21 ? 2.0 : 3.25, 2));
    append(at("a/metrics.jsonl"), text);
  }
  const std::string text = summary_text(RunReader(at("a")), {});
  EXPECT_HAS(text, "  expert load      1.50 ▁▁  layers.0, 1.50 to 1.50\n");
  EXPECT_HAS(text, "                   3.25 ▁█  layers.1, 2.00 to 3.25, 2 without a token\n");
}

TEST_F(RunReaderTest, FollowsAFileThatGrows) {
  write_run(at("a"), "first", 5);
  RunReader run(at("a"));
  EXPECT_FALSE(run.poll());
  const std::string line = metrics_line(6);
  append(at("a/metrics.jsonl"), line.substr(0, 20));
  EXPECT_FALSE(run.poll());
  EXPECT_EQ(run.history().last_step(), 5);
  append(at("a/metrics.jsonl"), line.substr(20));
  EXPECT_TRUE(run.poll());
  EXPECT_EQ(run.history().last_step(), 6);
  EXPECT_EQ(run.history().num_steps(), 6u);
}

TEST_F(RunReaderTest, ReadsFilesThatWereReplacedAndNoOthers) {
  write_run(at("a"), "first", 5);
  RunReader run(at("a"));
  write_file_atomic(at("a/report.json"), "{\"model\": ");
  run.poll();
  run.poll();
  EXPECT_EQ(run.defects(), std::vector<std::string>{"report.json is damaged"});
  write_file_atomic(at("a/report.json"), R"({"model": "new"})");
  run.poll();
  EXPECT_TRUE(run.defects().empty());
  EXPECT_EQ(run.about()["model"], "new");
  std::filesystem::remove(at("a/report.json"));
  run.poll();
  EXPECT_TRUE(run.about().is_null());
}

TEST_F(RunReaderTest, ForgetsThatAFileCouldNotBeRead) {
  write_run(at("a"), "first", 5);
  std::filesystem::remove(at("a/samples.jsonl"));
  std::filesystem::create_directory(at("a/samples.jsonl"));
  RunReader run(at("a"));
  EXPECT_EQ(run.defects().size(), 1u);
  std::filesystem::remove(at("a/samples.jsonl"));
  run.poll();
  EXPECT_TRUE(run.defects().empty());
}

TEST_F(RunReaderTest, StartsAgainWhenARunGoesOnFromAnEarlierStep) {
  write_run(at("a"), "first", 8);
  RunReader run(at("a"));
  std::string shorter;
  for (int64_t step = 1; step <= 4; ++step) shorter += metrics_line(step, 1.0);
  write_text(at("a/metrics.jsonl"), shorter);
  EXPECT_TRUE(run.poll());
  EXPECT_EQ(run.history().last_step(), 4);
  // In one poll: truncated to step 2, and longer than before.
  std::string longer;
  for (int64_t step = 1; step <= 2; ++step) longer += metrics_line(step, 2.0);
  for (int64_t step = 3; step <= 6; ++step) longer += metrics_line(step, 3.0);
  write_text(at("a/metrics.jsonl"), longer);
  EXPECT_TRUE(run.poll());
  EXPECT_EQ(run.history().last_step(), 6);
  EXPECT_EQ(run.history().num_steps(), 6u);
}

TEST_F(RunReaderTest, LeavesOutDamagedLines) {
  write_run(at("a"), "first", 3);
  append(at("a/metrics.jsonl"), "{\"step\":4,\"loss\":\n\x01\xff\n[]\n{\"loss\":1}\n{\"step\":-1,\"loss\":1}\n\n");
  append(at("a/metrics.jsonl"), metrics_line(4));
  append(at("a/events.jsonl"), "nothing\n{\"event\":7}\n");
  write_text(at("a/samples.jsonl"), "{\"step\":2,\"prompt\":\"p\",\"answer\":\"a\"}\n{\"step\":\"x\"}\n");
  write_text(at("a/report.json"), "{\"schema\": ");
  write_text(at("a/ranks.json"), "{\"ranks\":[1,null,{\"rank\":\"x\"},{\"rank\":1,\"step_ms\":5,\"wait_ms\":1}]}");
  const RunReader run(at("a"));
  EXPECT_EQ(run.history().last_step(), 4);
  EXPECT_EQ(run.samples().size(), 1u);
  std::string defects;
  for (const std::string& defect : run.defects()) defects += defect + "\n";
  EXPECT_HAS(defects, "6 lines of metrics.jsonl are damaged and left out, the first is line 7\n");
  EXPECT_HAS(defects, "2 lines of events.jsonl are damaged and left out, the first is line 4\n");
  EXPECT_HAS(defects, "line 2 of samples.jsonl is damaged and left out\n");
  EXPECT_HAS(defects, "report.json is damaged\n");
  EXPECT_HAS(summary_text(run, {}), "report.json is damaged");
}

// A parser that calls itself for each level would overflow the stack.
TEST_F(RunReaderTest, RefusesDeepNesting) {
  write_run(at("a"), "first", 3);
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  const std::string object = "{\"step\":4,\"event\":\"x\",\"ranks\":" + deep + "}\n";
  for (const char* name : {"metrics.jsonl", "events.jsonl", "samples.jsonl"})
    append(at(std::string("a/") + name), object);
  for (const char* name : {"run.json", "report.json", "plugins.lock", "ranks.json"})
    write_text(at(std::string("a/") + name), object);
  std::filesystem::create_directory(at("a/post-mortem"));
  write_text(at("a/post-mortem/rank-0.json"), object);
  const RunReader run(at("a"));
  EXPECT_EQ(run.history().last_step(), 3);
  EXPECT_EQ(run.defects().size(), 7u);
  EXPECT_HAS(summary_text(run, {}), "post-mortem/rank-0.json: damaged");
}

TEST_F(RunReaderTest, ShowsWhatItCanRead) {
  write_run(at("a"), "first", 3);
  for (const char* name : {"run.json", "report.json", "plugins.lock", "ranks.json", "resolved.toml", "events.jsonl"}) {
    std::filesystem::remove(at(std::string("a/") + name));
    std::filesystem::create_symlink(name, at(std::string("a/") + name));  // a link to itself
  }
  const RunReader run(at("a"));
  EXPECT_EQ(run.history().last_step(), 3);
  EXPECT_EQ(run.defects().size(), 6u);
}

TEST_F(RunReaderTest, TakesValuesOfAnyType) {
  write_run(at("a"), "first", 1);
  append(at("a/metrics.jsonl"),
         "{\"step\":2,\"loss\":null,\"skipped\":true,\"text\":\"x\",\"list\":[1],\"big\":1e308}\n");
  const RunReader run(at("a"));
  EXPECT_EQ(run.history().find("loss")->num_not_finite, 1u);
  EXPECT_EQ(run.history().find("skipped")->last, 1.0);
  EXPECT_EQ(run.history().find("big")->last, 1e308);
}

TEST_F(RunReaderTest, RefusesWhatIsNoRun) {
  const auto refusal = [](const std::string& path) {
    try {
      const RunReader run(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  write_text(at("file"), "");
  std::filesystem::create_directory(at("empty"));
  EXPECT_HAS(refusal(at("absent")), "does not exist");
  EXPECT_HAS(refusal(at("file")), "is not a directory");
  EXPECT_HAS(refusal(at("empty")), "is not a run: it has neither run.json nor metrics.jsonl");
}

TEST_F(RunReaderTest, SaysThatThereAreNoMetrics) {
  write_run(at("a"), "first", 3);
  std::filesystem::remove(at("a/metrics.jsonl"));
  EXPECT_HAS(summary_text(RunReader(at("a")), {}), "there is no metrics.jsonl: [log] sinks has no \"jsonl\"");
}

TEST_F(RunReaderTest, KnowsThatAProcessWasKilled) {
  write_run(at("a"), "first", 3);
  const auto start = [&](int64_t process) {
    return "{\"event\":\"start\",\"time\":200.0,\"step\":3,\"host\":\"" + host_name() +
           "\",\"process\":" + std::to_string(process) + "}\n";
  };
  append(at("a/events.jsonl"), start(getpid()));
  RunReader run(at("a"));
  EXPECT_EQ(run.state(), RunStatus::kRunning);
  append(at("a/events.jsonl"), start(0x7ffffffe));
  run.poll();
  EXPECT_EQ(run.state(), RunStatus::kKilled);
  append(at("a/events.jsonl"), "{\"event\":\"end\",\"time\":210.0,\"step\":3,\"outcome\":\"stopped\"}\n");
  run.poll();
  EXPECT_EQ(run.state(), RunStatus::kStopped);
}

TEST_F(RunReaderTest, ComparesConfigurations) {
  write_run(at("a"), "first", 2);
  write_run(at("b"), "second", 2, 0.5);
  const RunReader a(at("a")), b(at("b"));
  const auto differences = config_differences({&a, &b});
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].key, "optimizer.lr");
  EXPECT_EQ(differences[0].values, (std::vector<std::string>{"0.001000", "0.501000"}));
  EXPECT_TRUE(config_differences({&a}).empty());
}

TEST(Straggler, IsTheRankWhoseOwnWorkIsLonger) {
  const auto rank = [](double step_ms, double wait_ms) {
    RankStatus status;
    status.step_ms = step_ms, status.wait_ms = wait_ms;
    return status;
  };
  EXPECT_EQ(straggler({rank(100, 40), rank(100, 5), rank(100, 41)}), 1);
  EXPECT_EQ(straggler({rank(100, 40), rank(100, 38), rank(100, 41)}), -1);
  EXPECT_EQ(straggler({rank(100, 40)}), -1);
}

constexpr const char* kNeeds =
    R"({"device": "This CPU", "world_size": 1, "compute": "f32", "threads": 2, "parameters_trained": 1000000,
        "needed_flops_per_token": 5e6})";

class RunLight : public RunReaderTest {
 protected:
  // The light of steps of 80 ms with 960 tokens, on a machine with these limits.
  Light light(const std::string& report, const MachineLimits& limits, const std::string& device = "This CPU") {
    write_run(at("a"), "first", 3);
    write_text(at("a/report.json"), report);
    std::string metrics;
    for (int64_t step = 1; step <= 3; ++step)
      metrics += R"({"step":)" + std::to_string(step) + R"(,"tokens":960,"step_ms":80.0})" + "\n";
    write_text(at("a/metrics.jsonl"), metrics);
    return light_of(RunReader(at("a")), device, [&](Dtype dtype, int threads) {
      EXPECT_EQ(dtype, Dtype::f32);
      EXPECT_EQ(threads, 2);
      return limits;
    });
  }
};

TEST_F(RunLight, IsThatOfTheProductsOrOfTheCopiesWhicheverTakeLonger) {
  // 960 · 5e6 FLOPs in 80 ms are 60 GFLOP/s, and 16 bytes of a million values are 0.2 GB/s.
  Light found = light(kNeeds, {.product_flops = 100e9, .copy_bytes = 10e9});
  EXPECT_NEAR(found.percent, 60.0, 1e-6);
  EXPECT_FALSE(found.is_by_copies);
  EXPECT_EQ(light_text(found),
            "  light       60 % by products; best f32 product 100 GFLOP/s, copy 10.0 GB/s, 2 threads\n");
  EXPECT_EQ(light_json(found)["by"], "products");
  found = light(kNeeds, {.product_flops = 1000e9, .copy_bytes = 0.4e9});
  EXPECT_NEAR(found.percent, 50.0, 1e-6);
  EXPECT_TRUE(found.is_by_copies);
}

TEST_F(RunLight, IsUnknownOnAnotherMachineForSeveralRanksAndForOldRuns) {
  const MachineLimits limits{1e9, 1e9};
  EXPECT_EQ(light(kNeeds, limits, "Another CPU").unknown, "the run was on This CPU, this machine is Another CPU");
  EXPECT_EQ(light(R"({"device": "This CPU", "world_size": 2, "needed_flops_per_token": 5e6})", limits).unknown,
            "the run had several ranks");
  const Light old = light(R"({"device": "This CPU", "flops_per_token": 5e6})", limits);
  EXPECT_EQ(light_text(old), "  light       unknown: report.json does not say what a token needs\n");
  EXPECT_TRUE(light_json(old)["percent"].is_null());
}

}  // namespace
}  // namespace chassis
