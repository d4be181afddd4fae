#include "host/launch/axes.hpp"

#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

AxisRequest preset(std::string name, int64_t size) { return {std::move(name), size, false, {}}; }
AxisRequest given(std::string name, int64_t size) { return {std::move(name), size, true, {"run.toml", 7, 1}}; }

std::string sizes(const std::vector<AxisRequest>& requests, int world_size) {
  std::string text;
  for (const auto& [name, size] : axis_sizes(requests, world_size)) text += name + "=" + std::to_string(size) + " ";
  return text;
}

std::string refusal(const std::vector<AxisRequest>& requests, int world_size) {
  try {
    return sizes(requests, world_size);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
}

TEST(Axes, TheRestTakesWhatIsLeft) {
  EXPECT_EQ(sizes({preset("dp_shard", -1)}, 6), "dp_shard=6 ");
  EXPECT_EQ(sizes({preset("pp", 1), preset("dp_shard", -1), given("tp", 2)}, 8), "pp=1 dp_shard=4 tp=2 ");
  EXPECT_EQ(sizes({given("dp_replicate", 2), given("dp_shard", 4)}, 8), "dp_replicate=2 dp_shard=4 ");
  EXPECT_EQ(sizes({given("tp", 8), preset("dp_shard", -1)}, 8), "tp=8 dp_shard=1 ");
  EXPECT_EQ(sizes({}, 1), "");
}

TEST(Axes, ARestThatTheUserSetReplacesThePreset) {
  EXPECT_EQ(sizes({given("dp_replicate", -1), preset("dp_shard", -1)}, 4), "dp_replicate=4 dp_shard=1 ");
  EXPECT_EQ(sizes({preset("dp_shard", -1), given("dp_replicate", -1), given("tp", 2)}, 4),
            "dp_shard=1 dp_replicate=2 tp=2 ");
}

TEST(Axes, TwoRestsAreRefusedByName) {
  const std::string text = refusal({given("dp_replicate", -1), given("tp", 2), given("dp_shard", -1)}, 8);
  EXPECT_HAS(text, "run.toml:7:1: mesh.dp_replicate = -1 and mesh.dp_shard = -1: only one axis can be the rest");
}

TEST(Axes, AProductThatIsNotTheNumberOfRanksIsRefusedWithBoth) {
  EXPECT_HAS(refusal({given("dp_shard", 3), given("tp", 2)}, 8),
             "run.toml:7:1: mesh.dp_shard = 3, mesh.tp = 2: needs 6 ranks, but there are 8");
  EXPECT_HAS(refusal({given("dp_shard", 1), preset("tp", 1)}, 2), "mesh.dp_shard = 1: needs 1 ranks, but there are 2");
  EXPECT_HAS(refusal({given("tp", 2)}, 1), "mesh.tp = 2: needs 2 ranks, but there are 1");
  EXPECT_HAS(refusal({given("tp", 2)}, 1), "hint: start 2 ranks with --nproc 2, or set mesh.tp = 1 for one process");
  EXPECT_HAS(refusal({given("tp", 2), preset("dp_shard", -1)}, 1),
             "hint: start 2 ranks with --nproc 2, or set mesh.tp = 1 for one process");
}

TEST(Axes, AProductAboveTheNumberOfRanksIsRefusedIfAxesOfOneFollow) {
  EXPECT_HAS(refusal({given("dp_shard", 3), preset("cp", 1), preset("tp", 1)}, 2),
             "mesh.dp_shard = 3: needs 3 ranks, but there are 2");
}

TEST(Axes, ARestThatDoesNotDivideIsRefusedWithBoth) {
  const std::string text = refusal({preset("dp_shard", -1), given("tp", 3)}, 8);
  EXPECT_HAS(text, "run.toml:7:1: mesh.tp = 3: 8 ranks are not a multiple of 3");
  EXPECT_HAS(text, "hint: mesh.dp_shard is the rest: start 6 or 9 ranks, or change the others");
  EXPECT_HAS(refusal({given("tp", 16), preset("dp_shard", -1)}, 8), "8 ranks are not a multiple of 16");
}

TEST(Axes, SizesOutOfRangeAreRefused) {
  for (int64_t size : {int64_t{0}, int64_t{-2}, int64_t{-1} << 40})
    EXPECT_HAS(refusal({given("tp", size)}, 8), "mesh.tp = " + std::to_string(size) + " is out of range");
  const std::vector<AxisRequest> huge(4, given("tp", int64_t{1} << 62));
  EXPECT_HAS(refusal(huge, 8), "but there are 8") << "no overflow";
}

}  // namespace
}  // namespace chassis
