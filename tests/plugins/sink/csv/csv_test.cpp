// metrics.csv as a reader sees it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/support/sink_run.hpp"

namespace {

using fake::Scalars;

class Csv : public testing::Test {
 protected:
  Csv() { std::filesystem::create_directories(folder_); }
  ~Csv() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ostringstream out;
    out << std::ifstream(folder_ + "/metrics.csv").rdbuf();
    return out.str();
  }
  fake::SinkRun make() { return {host_, CHASSIS_TEST_PLUGIN_DIR "/csv.so", "csv"}; }

  const std::string folder_ = testing::TempDir() + "chassis-csv-" + std::to_string(getpid());
  fake::Host host_;
};

TEST_F(Csv, HasARowForEachStepAndAColumnForEachName) {
  fake::SinkRun run = make();
  run.start(folder_);
  run.scalars(1, {{"loss", 2.5}, {"lr", 1e-4}});
  run.scalars(2, {{"lr", 2e-4}, {"loss", std::nan("")}});
  run.finish(2);
  EXPECT_EQ(content(), "step,time,loss,lr\n1,1700000001,2.5,1e-04\n2,1700000002,nan,2e-04\n");
}

TEST_F(Csv, GivesNewNamesAColumnLater) {
  fake::SinkRun run = make();
  run.start(folder_);
  run.scalars(1, {{"loss", 2}});
  run.scalars(1, {{"eval/a, \"b\"/loss", 3}});
  run.scalars(2, {{"loss", 1}});
  run.finish(2);
  EXPECT_EQ(content(),
            "step,time,loss,\"eval/a, \"\"b\"\"/loss\"\n1,1700000001,2,\n1,1700000001,,3\n2,1700000002,1,\n");
}

TEST_F(Csv, OfARunThatGoesOnKeepsItsEarlierSteps) {
  for (const int64_t first : {0, 2}) {
    fake::SinkRun run = make();
    run.start(folder_, first);
    for (int64_t step = first + 1; step <= first + 3; ++step) run.scalars(step, {{"loss", first + 0.5}});
    run.finish(first + 3);
  }
  EXPECT_EQ(content(),
            "step,time,loss\n1,1700000001,0.5\n2,1700000002,0.5\n3,1700000003,2.5\n4,1700000004,2.5\n"
            "5,1700000005,2.5\n");
}

TEST_F(Csv, LeavesAnotherProgramsFileAlone) {
  std::ofstream(folder_ + "/metrics.csv") << "a,b\n1,2\n";
  fake::SinkRun run = make();
  EXPECT_THROW(run.start(folder_), std::exception);
  EXPECT_EQ(content(), "a,b\n1,2\n");
}

}  // namespace
