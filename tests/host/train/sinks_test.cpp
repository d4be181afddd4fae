#include "host/train/sinks.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "host/base/json.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::ScratchDirectory;

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(test::text_of_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<int64_t> steps_of(const std::string& path) {
  std::vector<int64_t> steps;
  for (const Json& line : lines_of(path)) steps.push_back(line["step"].get<int64_t>());
  return steps;
}

StepRecord record(int64_t step) {
  StepRecord r;
  r.step = step;
  r.loss = 1.5;
  r.tokens = 100;
  r.step_ms = 50.0;
  return r;
}

TEST(JsonlSink, WritesEveryFieldOfAStep) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  auto sink = make_jsonl_sink(path, 0);
  StepRecord r = record(1);
  r.extra = {{"experts_used", 3.0}};
  sink->step(r);
  sink->evaluation({.step = 1, .name = "dev", .loss = 2.0, .perplexity = std::exp(2.0), .trained_tokens = 9, .seconds = 0.5});
  const auto lines = lines_of(path);  // each line is there at once
  ASSERT_EQ(lines.size(), 2u);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "trained_tokens", "tokens_per_s", "step_ms", "data_ms",
                          "forward_ms", "backward_ms", "optimizer_ms", "peak_memory_bytes", "active_memory_bytes",
                          "reserved_memory_bytes", "experts_used"})
    EXPECT_TRUE(lines[0].contains(key)) << key;
  EXPECT_EQ(lines[0]["tokens_per_s"], 2000.0);
  EXPECT_EQ(lines[1]["eval"], "dev");
}

TEST(JsonlSink, DropsWhatLiesBehindTheStepThatIsResumed) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  {
    auto sink = make_jsonl_sink(path, 0);
    for (int64_t step = 1; step <= 5; ++step) sink->step(record(step));
  }
  {
    auto sink = make_jsonl_sink(path, 3);
    EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3}));
    sink->step(record(4));
  }
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3, 4}));
  make_jsonl_sink(path, 0);
  EXPECT_EQ(steps_of(path), std::vector<int64_t>());
}

TEST(JsonlSink, DropsALineThatAKillCutShort) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  make_jsonl_sink(path, 0)->step(record(1));
  test::write_text(path, test::text_of_file(path) + "{\"step\": 2, \"lo");
  make_jsonl_sink(path, 2)->step(record(2));
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2}));
}

TEST(JsonlSink, ALossThatIsNotFiniteIsStillALine) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  StepRecord r = record(1);
  r.loss = NAN;
  r.skipped = true;
  make_jsonl_sink(path, 0)->step(r);
  EXPECT_TRUE(lines_of(path)[0]["loss"].is_null());
  EXPECT_EQ(lines_of(path)[0]["skipped"], true);
}

}  // namespace
}  // namespace chassis
