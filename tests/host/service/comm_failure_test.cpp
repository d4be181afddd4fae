// Errors of a Communicator when the calls of ranks differ, when a rank does not come, and when a rank fails. Ranks are
// threads here; comm_faults_test.cpp has processes that die.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/host/service/comm_calls.hpp"
#include "tests/support/comm_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using test::Buffers;
using test::call_of;
using test::RankEnd;
using test::RankPlugins;
using test::start_raw;
using Axes = std::vector<std::string>;

using MakeCalls = std::function<std::vector<chassis_collective_t>(int rank, Buffers& buffers)>;

// How each rank ends. It makes three calls that agree, then starts its own calls and waits for them.
std::vector<RankEnd> run_calls(int num_ranks, std::chrono::milliseconds deadline, const MakeCalls& make) {
  return test::run_ranks(num_ranks, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = deadline},
                         [&](Communicator& communicator, RankPlugins&) {
                           Buffers buffers;
                           ProcessGroup& group = communicator.group({});
                           for (int i = 0; i < 3; ++i) {
                             const auto same = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "before");
                             CommHandle work = start_raw(communicator, group, {&same, 1});
                             communicator.wait(work);
                           }
                           const std::vector<chassis_collective_t> calls = make(communicator.rank(), buffers);
                           CommHandle work = start_raw(communicator, group, calls);
                           communicator.wait(work);
                         });
}

// All ranks end with a communication error that has these texts.
void expect_errors(const std::vector<RankEnd>& ends, const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].failed) << rank;
    EXPECT_EQ(ends[rank].code, ExitCode::kCommunication) << rank;
    for (const std::string& text : texts) EXPECT_HAS(ends[rank].text, text);
  }
}

// Rank 1 makes another call. Both ranks name both calls, long before the deadline.
void expect_difference(const std::function<void(chassis_collective_t&)>& change, const std::string& first,
                       const std::string& second) {
  const auto start = std::chrono::steady_clock::now();
  expect_errors(run_calls(2, 60s,
                          [&](int rank, Buffers& buffers) {
                            chassis_collective_t call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 1000, "layers.3");
                            if (rank == 1) change(call);
                            return std::vector{call};
                          }),
                {"two ranks make different calls in #4 of dp: rank 0: " + first + "; rank 1: " + second});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(CallMismatch, ReportsDifferentOps) {
  expect_difference(
      [](auto& call) {
        call.op = CHASSIS_COMM_REDUCE_SCATTER;
        call.reduce = CHASSIS_REDUCE_SUM;
      },
      "all_gather of 1000 f32 'layers.3'", "reduce_scatter of 1000 f32 'layers.3'");
}
TEST(CallMismatch, ReportsDifferentDtypes) {
  expect_difference([](auto& call) { call.dtype = CHASSIS_DTYPE_BF16; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 1000 bf16 'layers.3'");
}
TEST(CallMismatch, ReportsDifferentCounts) {
  expect_difference([](auto& call) { call.count = 1001; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 1001 f32 'layers.3'");
}
TEST(CallMismatch, ReportsDifferentNames) {
  expect_difference(
      [](auto& call) {
        call.name = {"layers.4", 8};
      },
      "all_gather of 1000 f32 'layers.3'", "all_gather of 1000 f32 'layers.4'");
}
TEST(CallMismatch, ReportsUnequalParts) {
  static constexpr uint64_t kCounts[] = {999, 1000};
  expect_difference([](auto& call) { call.counts = kCounts; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 999, 1000 f32 in total 'layers.3'");
}

TEST(CallMismatch, ReportsDifferentReductions) {
  expect_errors(run_calls(2, 60s,
                          [](int rank, Buffers& buffers) {
                            chassis_collective_t call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "loss");
                            if (rank == 0) call.reduce = CHASSIS_REDUCE_MAX;
                            return std::vector{call};
                          }),
                {"rank 0: all_reduce (max) of 10 f32 'loss'; rank 1: all_reduce of 10 f32 'loss'"});
}

TEST(CallMismatch, ReportsDifferentRootsOfABroadcast) {
  expect_errors(run_calls(2, 60s,
                          [](int rank, Buffers& buffers) {
                            chassis_collective_t call = call_of(CHASSIS_COMM_BROADCAST, buffers, 10, "w");
                            call.peer = rank;
                            return std::vector{call};
                          }),
                {"rank 0: broadcast of 10 f32 'w' from rank 0; rank 1: broadcast of 10 f32 'w' from rank 1"});
}

TEST(CallMismatch, ReportsTheFirstDifferenceInABatch) {
  expect_errors(run_calls(2, 60s,
                          [](int rank, Buffers& buffers) {
                            std::vector<chassis_collective_t> calls;
                            for (const char* name : {"a", "b", "c", "d"})
                              calls.push_back(call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, name));
                            if (rank == 1) calls[2].count = 11;
                            return calls;
                          }),
                {"rank 0: all_reduce of 10 f32 'c' (3 of 4); rank 1: all_reduce of 11 f32 'c' (3 of 4)"});
}

TEST(CallMismatch, ReportsBatchesOfDifferentLengths) {
  expect_errors(run_calls(2, 60s,
                          [](int rank, Buffers& buffers) {
                            std::vector calls = {call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "a")};
                            if (rank == 0) calls.push_back(call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "b"));
                            return calls;
                          }),
                {"rank 0: all_reduce of 10 f32 'b' (2 of 2); rank 1: no further call"});
}

TEST(CallMismatch, ReportsCallsInDifferentOrder) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                    [](Communicator& communicator, RankPlugins&) {
                                      Buffers buffers;
                                      std::vector<CommHandle> works;
                                      const bool swap = communicator.rank() == 1;
                                      for (const char* name : {swap ? "b" : "a", swap ? "a" : "b"}) {
                                        const auto call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 500, name);
                                        works.push_back(start_raw(communicator, communicator.group({}), {&call, 1}));
                                      }
                                      // All calls in flight are compared, and the first one differs.
                                      communicator.wait(works[1]);
                                      communicator.wait(works[0]);
                                    });
  expect_errors(ends,
                {"different calls in #1 of dp: rank 0: all_gather of 500 f32 'a'; rank 1: all_gather of 500 f32 'b'"});
}

TEST(CallMismatch, ReportsADifferenceOnOneOfThreeRanks) {
  expect_errors(run_calls(3, 60s,
                          [](int rank, Buffers& buffers) {
                            return std::vector{call_of(CHASSIS_COMM_ALL_REDUCE, buffers, rank == 1 ? 20 : 10, "x")};
                          }),
                {"make different calls in #4 of dp", "rank 1: all_reduce of 20 f32 'x'", "all_reduce of 10 f32 'x'"});
}

TEST(CallMismatch, ReportsASendThatDoesNotMatchItsRecv) {
  const auto ends = run_calls(2, 60s, [](int rank, Buffers& buffers) {
    chassis_collective_t call =
        call_of(rank == 0 ? CHASSIS_COMM_SEND : CHASSIS_COMM_RECV, buffers, rank == 0 ? 10 : 12, "x");
    call.peer = 1 - rank;
    return std::vector{call};
  });
  expect_errors(ends,
                {"what two ranks send each other does not match in #4 of dp: rank 0: send of 10 f32 'x' to rank 1; "
                 "rank 1: recv of 12 f32 'x' from rank 0"});
}

TEST(CallMismatch, ReportsUnequalPartsThatDoNotMatch) {
  static constexpr uint64_t kGiven[] = {3, 5}, kExpected[] = {3, 6};
  const auto ends = run_calls(2, 60s, [](int rank, Buffers& buffers) {
    chassis_collective_t call = call_of(CHASSIS_COMM_ALL_TO_ALL, buffers, 0, "tokens");
    call.counts = kGiven;
    call.recv_counts = rank == 0 ? kGiven : kExpected;
    return std::vector{call};
  });
  expect_errors(ends, {"does not match in #4 of dp", "all_to_all of 3, 5 f32, receiving 3, 6 'tokens'"});
}

// Rank 1 does something else until the others report their error.
std::vector<RankEnd> without_rank_1(std::chrono::milliseconds deadline, int num_ranks) {
  return test::run_ranks(num_ranks, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = deadline},
                         [](Communicator& communicator, RankPlugins&) {
                           Buffers buffers;
                           ProcessGroup& group = communicator.group({});
                           if (communicator.rank() == 1) {
                             communicator.world().set_deadline(60s);
                             communicator.world().wait_for([] { return false; }, [] { return "nobody failed"; });
                           }
                           const auto call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 100, "layers.0");
                           CommHandle work = start_raw(communicator, group, {&call, 1});
                           communicator.wait(work);
                         });
}

TEST(MissingRank, IsNamedAfterTheDeadline) {
  expect_errors(without_rank_1(500ms, 2),
                {"all_gather of 100 f32 'layers.0' (#1 of dp) was not done within", "rank 1 did not respond"});
}

TEST(MissingRank, IsDistinguishedFromRanksThatWait) {
  const auto ends = without_rank_1(2500ms, 4);
  expect_errors(ends, {"was not done within 3 s: rank 1 did not respond"});
  for (const RankEnd& end : ends) EXPECT_EQ(end.text.find("ranks"), std::string::npos) << end.text;
}

TEST(MissingRank, IsNamedWithTheCallThatItWaitsFor) {
  // Ranks 0 and 2 are neighbours on x. Rank 2 waits there for rank 0, which waits in the group of all ranks.
  const std::vector<MeshAxis> axes = {{"x", 2}, {"y", 2}};
  const auto ends = test::run_ranks(4, {.backend = "gloo", .options = Json::object(), .axes = axes, .deadline = 2500ms},
                                    [](Communicator& communicator, RankPlugins&) {
                                      ProcessGroup& all = communicator.group({});
                                      ProcessGroup& x = communicator.group(Axes{"x"});
                                      const auto meet = [&](ProcessGroup& group, const char* name) {
                                        communicator.run(group, {.op = CHASSIS_COMM_BARRIER,
                                                                 .send = {},
                                                                 .recv = {},
                                                                 .reduce = 0,
                                                                 .name = name,
                                                                 .counts = {},
                                                                 .recv_counts = {}});
                                      };
                                      if (communicator.rank() == 2)
                                        meet(x, "first"), meet(all, "second");
                                      else
                                        meet(all, "second"), meet(x, "first");
                                    });
  expect_errors(ends, {"barrier"});
  bool named = false;  // by the rank whose deadline passes first
  for (const RankEnd& end : ends)
    named |= end.text.find("rank 2 waits in barrier 'first' (#1 of x)") != std::string::npos ||
             end.text.find("waits in barrier 'second' (#1 of x+y)") != std::string::npos;
  EXPECT_TRUE(named) << ends[0].text;
}

// Rank 2 waits for rank 3 on y. Rank 0, whose deadline passes first, waits for rank 2 on x.
TEST(MissingRank, IsNamedByRanksThatWaitForItThroughOthers) {
  const std::vector<MeshAxis> axes = {{"x", 2}, {"y", 2}};
  const auto ends =
      test::run_ranks(4, {.backend = "gloo", .options = Json::object(), .axes = axes, .deadline = 2500ms},
                      [](Communicator& communicator, RankPlugins&) {
                        ProcessGroup& x = communicator.group(Axes{"x"});
                        ProcessGroup& y = communicator.group(Axes{"y"});
                        const auto meet = [&](ProcessGroup& group, const char* name) {
                          Collective barrier;
                          barrier.op = CHASSIS_COMM_BARRIER;
                          barrier.name = name;
                          communicator.run(group, std::move(barrier));
                        };
                        if (communicator.rank() == 3) {
                          communicator.world().set_deadline(60s);
                          communicator.world().wait_for([] { return false; }, [] { return "nobody failed"; });
                        }
                        // So that rank 0's deadline passes first.
                        if (communicator.rank() != 0) std::this_thread::sleep_for(600ms);
                        if (communicator.rank() >= 2) meet(y, "first");
                        meet(x, "second");
                      });
  expect_errors(ends, {"rank 3 did not respond"});
}

TEST(FailedRank, EndsTheOthersWithItsError) {
  for (int failing : {0, 2}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ends = test::run_ranks(3, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                      [&](Communicator& communicator, RankPlugins&) {
                                        Buffers buffers;
                                        const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 4000, "grad");
                                        for (int i = 0;; ++i) {
                                          CommHandle work = start_raw(communicator, communicator.group({}), {&call, 1});
                                          if (communicator.rank() == failing && i == 20)
                                            throw Error(ExitCode::kNumeric, "loss is nan");
                                          communicator.wait(work);
                                        }
                                      });
    for (int rank = 0; rank < 3; ++rank) {
      const RankEnd& end = ends[static_cast<size_t>(rank)];
      EXPECT_EQ(end.code, ExitCode::kNumeric) << end.text;
      EXPECT_EQ(end.remote, rank != failing);
      EXPECT_HAS(end.text, rank == failing ? "loss is nan" : "rank " + std::to_string(failing) + ": loss is nan");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  }
}

TEST(FailedRank, EndsRanksThatFormAGroup) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                    [](Communicator& communicator, RankPlugins&) {
                                      if (communicator.rank() == 1) throw Error(ExitCode::kOutOfMemory, "no room");
                                      communicator.group({});
                                    });
  EXPECT_HAS(ends[0].text, "rank 1: no room");
  EXPECT_EQ(ends[0].code, ExitCode::kOutOfMemory);
}

}  // namespace
}  // namespace chassis
