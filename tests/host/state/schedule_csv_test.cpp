// Schedules as text: what is read, what is refused and where, and that a written schedule is read back.
#include "host/state/schedule_csv.hpp"

#include <gtest/gtest.h>

#include "host/base/error.hpp"
#include "host/state/schedule_generators.hpp"
#include "host/state/schedule_proof.hpp"
#include "random_layout.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::testing {
namespace {

using Kind = Work::Kind;

std::string refusal(std::string_view text) {
  try {
    parse_schedule_csv(text, "pipe.csv");
    return "";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfig);
    return e.what();
  }
}

TEST(ScheduleCsv, ReadsCellsAndDropsIdleOnes) {
  const Schedule schedule = parse_schedule_csv("0F0,0F1,,,0B0,0B1\r\n,1F0,1F1, 1I0 ,1B1,1W0\r\n\r\n", "pipe.csv");
  EXPECT_EQ(schedule.stages, StageMap::interleaved(2, 1));
  EXPECT_EQ(schedule.num_microbatches, 2);
  EXPECT_EQ(schedule.ranks[1], (std::vector<Work>{{Kind::kForward, 0, 0},
                                                  {Kind::kForward, 0, 1},
                                                  {Kind::kBackwardInputs, 0, 0},
                                                  {Kind::kBackward, 0, 1},
                                                  {Kind::kBackwardParams, 0, 0}}));
}

TEST(ScheduleCsv, PlacesStagesWhereTheirCellsAre) {
  EXPECT_EQ(parse_schedule_csv("0F0,,,3F0,3B0,,,0B0\n,1F0,2F0,,,2B0,1B0,", "v.csv").stages, StageMap::v_shaped(2));
  EXPECT_EQ(parse_schedule_csv("1F0,2F0,2B0,1B0\n0F0,0B0", "v.csv").stages, StageMap({1, 0, 0}));
}

// Written by ScheduleInterleavedZeroBubble of PyTorch 2.11: 2 ranks, 2 chunks, 4 micro-batches.
TEST(ScheduleCsv, ReadsAScheduleOfPyTorch) {
  const Schedule schedule = parse_schedule_csv(
      "0F0,0F1,2F0,,2F1,2I0,2W0,0F2,2I1,2W1,0F3,0I0,0W0,2F2,0I1,0W1,2F3,2I2,2W2,2I3,2W3,0I2,0W2,0I3,0W3\r\n"
      ",1F0,1F1,3F0,3I0,3F1,3I1,3W0,1F2,1I0,3W1,1F3,1I1,1W0,3F2,3I2,1W1,3F3,3I3,3W2,1I2,3W3,1I3,1W2,1W3\r\n",
      "pipe.csv");
  EXPECT_EQ(schedule.stages, StageMap::interleaved(2, 2));
  EXPECT_EQ(schedule.num_microbatches, 4);
  EXPECT_EQ(schedule.ranks[0].size(), 24u);
  EXPECT_DOUBLE_EQ(simulate(schedule, StageCost{}).makespan, 25.0);
}

TEST(ScheduleCsv, PutsCellsAfterWhatTheyNeed) {
  EXPECT_EQ(schedule_csv(one_f_one_b_schedule(2, 2)), "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n");
}

TEST(ScheduleCsv, ReadsWhatItWrites) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Dice dice(seed);
    const int p = static_cast<int>(dice.roll(1, 6)), m = p * static_cast<int>(dice.roll(1, 3));
    static const char* const kNames[] = {"gpipe", "1f1b", "interleaved", "zb_h1", "zbv"};
    const int64_t name = dice.roll(0, 4);
    const Schedule schedule = make_schedule({kNames[name], p, name == 2 ? 3 : name == 4 ? 2 : 1, m, 0, {}});
    ASSERT_EQ(parse_schedule_csv(schedule_csv(schedule), "pipe.csv"), schedule) << seed;
  }
}

TEST(ScheduleCsv, NamesLineAndColumnOfACellThatItCannotRead) {
  for (const char* cell : {"0X0", "F0", "0F", "0F0x", "-1F0", "0F-1", "0 F0", "0SEND_F0", "0UNSHARD", "99999999999F0"})
    EXPECT_HAS(refusal("0F0,0B0\n ," + std::string(cell) + ",1B0"),
               "pipe.csv:2:3: cell '" + std::string(cell) + "' is not a stage");
}

TEST(ScheduleCsv, NamesLineAndColumnOfFaults) {
  EXPECT_HAS(refusal("0F0,,0B0,0F0\n,1F0,1B0"), "pipe.csv:1:10: rank 0, entry 2: forward of chunk 0, micro-batch 0");
  EXPECT_HAS(refusal("0F0,0B0\n1F0"), "pipe.csv:2: rank 1 has no backward");
  EXPECT_HAS(refusal("0F0,0B0\n1F0,,1B0\n2B0,2F0"), "pipe.csv:3:1: rank 2, entry 0 never runs");
}

// As editors and spreadsheets leave them.
TEST(ScheduleCsv, SkipsAByteOrderMarkAndBlankLines) {
  const Schedule plain = parse_schedule_csv("0F0,,0B0\n,1F0,1B0\n", "pipe.csv");
  EXPECT_EQ(parse_schedule_csv("\xEF\xBB\xBF"
                               "0F0,,0B0\r\n\r\n  \r\n,1F0,1B0\r\n",
                               "pipe.csv"),
            plain);
  EXPECT_HAS(refusal("\n0F0,0B0\n\n1F0"), "pipe.csv:4: rank 1 has no backward");
  EXPECT_HAS(refusal("\n\n0F0,0B0\n\n0B0"),
             "pipe.csv:5:1: stage 0 lies on rank 0 (line 3, column 1), not also on rank 1");
  EXPECT_HAS(refusal(std::string_view("\xFF\xFE"
                                      "0\0F\0",
                                      6)),
             "the file is text in UTF-16");
}

TEST(ScheduleCsv, NamesWhatAFileWithAnotherNumberOfRanksLacks) {
  const auto refused = [](std::string_view text, int num_ranks) {
    try {
      parse_schedule_csv(text, "pipe.csv", num_ranks);
      return std::string();
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_HAS(refused("0F0,,,3F0,3B0,,,0B0\n", 2),
             "pipe.csv:1: the file has lists for 1 rank, mesh.pp is 2: the line of one rank is missing; no line has "
             "stage 1, 2");
  EXPECT_HAS(refused("0F0,0B0\n1F0,1B0\n", 4),
             "pipe.csv:2: the file has lists for 2 ranks, mesh.pp is 4: the lines of 2 ranks are missing");
  EXPECT_HAS(refused("0F0,0B0\n\n1F0,1B0\n", 1),
             "pipe.csv:3: the file has lists for 2 ranks, mesh.pp is 1: there is no rank 1");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0\n", 2), "");
}

TEST(ScheduleCsv, RefusesStagesWithoutAPlace) {
  EXPECT_HAS(refusal("0F0,0B0\n1F0,1B0,0F1"),
             "pipe.csv:2:9: stage 0 lies on rank 0 (line 1, column 1), not also on rank 1");
  EXPECT_HAS(refusal("0F0,0B0\n2F0,2B0"), "pipe.csv:2:1: stage 2 is named, but stage 1 has no cell");
  EXPECT_HAS(refusal("0F0,0B0\n,,\n1F0,1B0"), "pipe.csv:2: rank 1 computes nothing");
  EXPECT_HAS(refusal(""), "pipe.csv:1: the file has no line with cells");
  EXPECT_HAS(refusal("\n \r\n"), "pipe.csv:1: the file has no line with cells");
}

TEST(ScheduleCsv, RefusesNumbersThatNeedMoreCells) {
  EXPECT_HAS(refusal("0F0,0B0,0F1,0B1000000000"),
             "pipe.csv:1:13: micro-batch 1000000000 is too large: 1 stages with "
             "1000000001 micro-batches need more than the 4 cells");
  EXPECT_HAS(refusal("0F0,0B0\n2147483647F0,1B0"), "pipe.csv:2:1: stage 2147483647 is too large");
}

// Random bytes, most of them from the alphabet of schedules, are read or refused.
TEST(ScheduleCsv, NeverReadsAScheduleThatIsNotProven) {
  int num_read = 0;
  for (uint64_t seed = 0; seed < 50'000; ++seed) {
    Dice dice(seed);
    std::string text = schedule_csv(make_schedule({"1f1b", 2, 1, 2, 0, {}}));
    for (int64_t k = dice.roll(0, 3); k > 0; --k) {
      static constexpr std::string_view kAlphabet = "0012,,\nFBIW \rx";
      text[static_cast<size_t>(dice.roll(0, static_cast<int64_t>(text.size()) - 1))] =
          kAlphabet[static_cast<size_t>(dice.roll(0, static_cast<int64_t>(kAlphabet.size()) - 1))];
    }
    try {
      ASSERT_TRUE(schedule_faults(parse_schedule_csv(text, "pipe.csv")).empty()) << text;
      ++num_read;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ExitCode::kConfig) << text;
    }
  }
  EXPECT_GT(num_read, 1000);
}

}  // namespace
}  // namespace chassis::testing
