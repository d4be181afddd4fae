// Lists without their repeats: only repeats are left out, and the rest can run.
#include "host/state/schedule_repeats.hpp"

#include <gtest/gtest.h>

#include <map>

#include "host/state/schedule_generators.hpp"

namespace chassis::testing {
namespace {

// Numbers the micro-batches of each kind of entry in their order.
class Numbering {
 public:
  Work operator()(Work work) {
    work.microbatch = next_[{work.kind, work.chunk}]++;
    return work;
  }

 private:
  std::map<std::pair<Work::Kind, int>, int> next_;
};

std::vector<Work> with_repeats(const ShortList& list) {
  std::vector<Work> out;
  Numbering numbered;
  auto repeat = list.repeats.begin();
  for (size_t i = 0; i < list.work.size(); ++i) {
    out.push_back(numbered(list.work[i]));
    if (repeat == list.repeats.end() || i + 1 < repeat->end()) continue;
    for (int64_t times = 0; times < repeat->times; ++times)
      for (size_t k = repeat->begin; k < repeat->end(); ++k) out.push_back(numbered(list.work[k]));
    ++repeat;
  }
  EXPECT_EQ(repeat, list.repeats.end());
  return out;
}

void expect_same_list(const Schedule& schedule, const std::string& name) {
  for (int rank = 0; rank < schedule.stages.num_ranks(); ++rank) {
    const std::vector<Work>& whole = schedule.ranks[static_cast<size_t>(rank)];
    const ShortList list = without_repeats(schedule, rank);
    ASSERT_EQ(with_repeats(list), whole) << name << ", rank " << rank;
    // The entries of each repeat occur twice before it and once after it.
    for (const ShortList::Repeat& repeat : list.repeats) {
      ASSERT_GT(repeat.times, 0);
      for (size_t i = repeat.begin; i < repeat.end(); ++i)
        for (const size_t other : {i - 2 * repeat.num_entries, i - repeat.num_entries, i + repeat.num_entries}) {
          ASSERT_LT(other, list.work.size());
          ASSERT_EQ(list.work[i].kind, list.work[other].kind);
          ASSERT_EQ(list.work[i].chunk, list.work[other].chunk);
        }
    }
    // The short list numbers its micro-batches in order.
    Numbering numbered;
    for (const Work& work : list.work) ASSERT_EQ(numbered(work), work) << name << ", rank " << rank;
  }
}

size_t longest(const Schedule& schedule) {
  size_t most = 0;
  for (int rank = 0; rank < schedule.stages.num_ranks(); ++rank)
    most = std::max(most, without_repeats(schedule, rank).work.size());
  return most;
}

std::vector<ScheduleRequest> requests(int num_ranks, int num_microbatches) {
  std::vector<ScheduleRequest> out;
  for (const char* name : {"gpipe", "1f1b", "zb_h1", "zbv"})
    out.push_back({name, num_ranks, std::string(name) == "zbv" ? 2 : 1, num_microbatches, 0, {}});
  for (int num_chunks : {2, 3})
    for (int groups : {1, 2}) {
      const int group_size = groups * num_ranks;
      if (num_microbatches % group_size == 0)
        out.push_back({"interleaved", num_ranks, num_chunks, num_microbatches, group_size, {}});
    }
  return out;
}

TEST(ScheduleRepeats, AreWhatIsLeftOut) {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 48; ++m)
      for (const ScheduleRequest& request : requests(p, m))
        expect_same_list(make_schedule(request),
                         request.name + ", " + std::to_string(p) + " ranks, " + std::to_string(m) + " micro-batches");
}

TEST(ScheduleRepeats, MakeListsThatDoNotGrowWithTheMicrobatches) {
  for (const int p : {2, 4, 7})
    for (const ScheduleRequest& request : requests(p, 40 * p)) {
      ScheduleRequest more = request;
      more.num_microbatches = 400 * p;
      const size_t length = longest(make_schedule(request));
      EXPECT_EQ(longest(make_schedule(more)), length) << request.name << ", " << p << " ranks";
      EXPECT_LE(length, static_cast<size_t>(60 * p * request.num_chunks)) << request.name << ", " << p << " ranks";
    }
}

TEST(ScheduleRepeats, MakeListsThatDoNotGrowWithTheRanks) {
  for (const char* name : {"gpipe", "1f1b", "zb_h1"})
    EXPECT_LE(longest(make_schedule({name, 100, 1, 1000, 0, {}})), 60u) << name;
}

TEST(ScheduleRepeats, AreNotLeftOutOfAnIrregularList) {
  using enum Work::Kind;
  Schedule schedule;
  schedule.num_microbatches = 8;
  schedule.ranks.resize(1);
  for (const int m : {0, 1, 3, 2, 4, 5, 7, 6}) schedule.ranks[0].push_back({kForward, 0, m});
  for (const int m : {7, 6, 5, 4, 3, 2, 1, 0}) schedule.ranks[0].push_back({kBackward, 0, m});
  const ShortList list = without_repeats(schedule, 0);
  EXPECT_EQ(list.work, schedule.ranks[0]);
  EXPECT_TRUE(list.repeats.empty());
}

TEST(ScheduleRepeats, LeaveFewMicrobatchesAlone) {
  for (const int m : {1, 2, 3}) {
    const Schedule schedule = one_f_one_b_schedule(2, m);
    EXPECT_EQ(without_repeats(schedule, 0).work, schedule.ranks[0]) << m;
  }
}

}  // namespace
}  // namespace chassis::testing
