// Metrics written to metrics.jsonl and to the console.
#include "host/train/sinks.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/objective/objective_plugin.hpp"
#include "tests/support/expect_has.hpp"
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

std::unique_ptr<MetricsSink> jsonl_sink(const std::string& path, int64_t last_step,
                                        LostMetrics lost = LostMetrics::kStop) {
  return make_jsonl_sink(open_metrics_file(path, last_step), lost);
}

TEST(JsonlSink, WritesEveryFieldOfAStep) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  auto sink = jsonl_sink(path, 0);
  StepRecord r = record(1);
  r.extra = {{"experts_used", 3.0}};
  sink->step(r);
  sink->evaluation(
      {.step = 1, .name = "dev", .loss = 2.0, .perplexity = std::exp(2.0), .trained_tokens = 9, .seconds = 0.5});
  const auto lines = lines_of(path);  // each line is written immediately
  ASSERT_EQ(lines.size(), 2u);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "trained_tokens", "tokens_per_s", "step_ms",
                          "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "peak_memory_bytes",
                          "active_memory_bytes", "reserved_memory_bytes", "experts_used"})
    EXPECT_TRUE(lines[0].contains(key)) << key;
  EXPECT_EQ(lines[0]["tokens_per_s"], 2000.0);
  EXPECT_EQ(lines[1]["eval"], "dev");
}

TEST(JsonlSink, NoObjectiveCanHaveAMetricOfTheNameOfAnotherValue) {
  const auto expect_known = [](std::string_view name, auto) { EXPECT_TRUE(is_name_of_records(name)) << name; };
  StepRecord step = record(1);
  step.skipped = true;
  step.memory = {{"memory/activations_bytes", 1}};
  step.for_each_value(expect_known);
  EvalRecord eval;
  eval.for_each_value(expect_known);
  eval.perplexity = 1;
  eval.for_each_value(expect_known);
}

TEST(JsonlSink, WritesScoresAsEvaluations) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  {
    auto sink = jsonl_sink(path, 0);
    sink->step(record(1));
    sink->score({.step = 1, .name = "sums", .num_passed = 3, .num_cut = 1, .num_rows = 4, .seconds = 0.5});
  }
  const auto lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["eval"], "sums");
  EXPECT_EQ(lines[1]["score"], 0.75);
  EXPECT_EQ(lines[1]["passed"], 3);
  EXPECT_EQ(lines[1]["rows"], 4);
  EXPECT_EQ(lines[1]["cut"], 1);
  jsonl_sink(path, 1);
  EXPECT_EQ(lines_of(path).size(), 2u) << "it is a line of this program";
}

TEST(GenerationsSink, ReplacesTheAnswersOfAStep) {
  ScratchDirectory scratch;
  auto sink = make_generations_sink(scratch / "generations", LostMetrics::kStop);
  EXPECT_FALSE(std::filesystem::exists(scratch / "generations"));
  for (const char* answers : {"{\"answer\":\"a\"}\n", "{\"answer\":\"b\"}\n"}) {
    sink->score({.step = 20, .name = "sums", .num_rows = 1, .answers = answers});
    EXPECT_EQ(test::text_of_file(scratch / "generations/sums/step-20.jsonl"), answers);
  }
  std::filesystem::remove_all(scratch / "generations");
  test::write_text(scratch / "generations", "in the way");
  EXPECT_THROW(sink->score({.step = 30, .name = "sums"}), Error);
  log::reset_counted_warnings();
  make_generations_sink(scratch / "generations", LostMetrics::kCount)->score({.step = 30, .name = "sums"});
  EXPECT_EQ(counted_warnings().size(), 1u);
  log::reset_counted_warnings();
}

TEST(JsonlSink, DropsStepsAfterTheResumedOne) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  {
    auto sink = jsonl_sink(path, 0);
    for (int64_t step = 1; step <= 5; ++step) sink->step(record(step));
  }
  {
    auto sink = jsonl_sink(path, 3);
    EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3}));
    sink->step(record(4));
  }
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3, 4}));
  jsonl_sink(path, 0);
  EXPECT_EQ(steps_of(path), std::vector<int64_t>());
}

TEST(JsonlSink, DropsALineThatAKillCutShort) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  jsonl_sink(path, 0)->step(record(1));
  test::write_text(path, test::text_of_file(path) + "{\"step\": 2, \"lo");
  jsonl_sink(path, 2)->step(record(2));
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2}));
}

TEST(JsonlSink, ALineThatCannotBeWrittenIsThrownOrCounted) {
  signal(SIGXFSZ, SIG_IGN);
  for (const LostMetrics lost : {LostMetrics::kStop, LostMetrics::kCount}) {
    ScratchDirectory scratch;
    const std::string path = scratch / "metrics.jsonl";
    auto sink = jsonl_sink(path, 0, lost);
    sink->step(record(1));
    log::reset_counted_warnings();
    struct rlimit before {};
    getrlimit(RLIMIT_FSIZE, &before);
    const struct rlimit limit { std::filesystem::file_size(path) + 10, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &limit);
    if (lost == LostMetrics::kStop)
      EXPECT_THROW(sink->step(record(2)), Error);
    else
      EXPECT_NO_THROW((sink->step(record(2)), sink->step(record(3))));
    setrlimit(RLIMIT_FSIZE, &before);
    sink->step(record(4));
    EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 4})) << "no part of a line is left";
    if (lost == LostMetrics::kCount) {
      ASSERT_EQ(counted_warnings().size(), 1u);
      EXPECT_EQ(counted_warnings()[0].second, 2u);
    }
  }
  log::reset_counted_warnings();
}

TEST(ConsoleSink, ALineIsTheMeanSinceThePreviousLine) {
  ConsoleFacts facts;
  facts.max_steps = 100;
  facts.every_steps = 10;
  auto sink = make_console_sink(facts);
  testing::internal::CaptureStderr();
  for (int64_t step = 1; step <= 25; ++step) {
    StepRecord r = record(step);
    r.loss = static_cast<double>(step);
    r.trained_tokens = 10;
    r.step_ms = step <= 10 ? 50.0 : 100.0;
    sink->step(r);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_HAS(said, "step 1/100 loss 1.0000");
  EXPECT_HAS(said, "step 10/100 loss 6.0000 ") << "of steps 2 to 10";
  EXPECT_HAS(said, "step 20/100 loss 15.5000 ");
  EXPECT_HAS(said, "| 1k tok/s");
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 3) << said;
}

TEST(ConsoleSink, ASkippedStepHasItsOwnLineAndIsInNoMean) {
  ConsoleFacts facts;
  facts.max_steps = 100;
  facts.every_steps = 2;
  auto sink = make_console_sink(facts);
  testing::internal::CaptureStderr();
  StepRecord r = record(1);
  r.trained_tokens = 10;
  sink->step(r);
  r.step = 3;
  r.loss = NAN;
  r.skipped = true;
  sink->step(r);
  r.step = 4;
  r.loss = 2.5;
  r.skipped = false;
  sink->step(r);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_HAS(said, "SKIPPED");
  EXPECT_HAS(said, "step 4/100 loss 2.5000");
}

TEST(JsonlSink, ALossThatIsNotFiniteIsStillALine) {
  ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  StepRecord r = record(1);
  r.loss = NAN;
  r.skipped = true;
  jsonl_sink(path, 0)->step(r);
  EXPECT_TRUE(lines_of(path)[0]["loss"].is_null());
  EXPECT_EQ(lines_of(path)[0]["skipped"], true);
}

}  // namespace
}  // namespace chassis
