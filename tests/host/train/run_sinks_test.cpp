// Several sinks as one: a failure of the storage ends the sink that has it, and is kept.
#include "host/train/run_sinks.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

class CountingSink final : public MetricsSink {
 public:
  CountingSink(int& steps, int& ends) : steps_(steps), ends_(ends) {}
  void step(const StepRecord&) override { ++steps_; }
  void evaluation(const EvalRecord&) override {}
  void sample(const SampleRecord&) override {}
  void finish(RunOutcome, int64_t) override { ++ends_; }

 private:
  int& steps_;
  int& ends_;
};

class ThrowingSink final : public MetricsSink {
 public:
  explicit ThrowingSink(ExitCode code) : code_(code) {}
  void step(const StepRecord&) override { throw Error(code_, "no room"); }
  void evaluation(const EvalRecord&) override {}
  void sample(const SampleRecord&) override {}

 private:
  ExitCode code_;
};

void write_step(RunSinks& sinks, int64_t step) {
  sinks.write(step, [](MetricsSink& sink) { sink.step({}); });
}

TEST(RunSinks, GoOnWithoutASinkWhoseStorageFails) {
  int steps = 0, ends = 0;
  RunSinks sinks;
  sinks.add(std::make_unique<ThrowingSink>(ExitCode::kStorage));
  sinks.add(std::make_unique<CountingSink>(steps, ends));
  EXPECT_FALSE(sinks.failure());
  write_step(sinks, 7);
  write_step(sinks, 8);
  EXPECT_EQ(steps, 2);
  ASSERT_TRUE(sinks.failure());
  EXPECT_EQ(sinks.failure()->code(), ExitCode::kStorage);
  EXPECT_HAS(sinks.failure()->what(), "metrics.jsonl lacks its lines from step 7 on");
  EXPECT_HAS(sinks.failure()->what(), "no room");
  sinks.finish(RunOutcome::kDone, 8);
  EXPECT_EQ(ends, 1);
}

TEST(RunSinks, PassOnEveryOtherFailure) {
  RunSinks sinks;
  sinks.add(std::make_unique<ThrowingSink>(ExitCode::kInternal));
  EXPECT_THROW(write_step(sinks, 1), Error);
  EXPECT_FALSE(sinks.failure());
}

}  // namespace
}  // namespace chassis
