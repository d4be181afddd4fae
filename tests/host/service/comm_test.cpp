// Groups, counts and sums of a Communicator; and what ranks are told whose calls differ, who wait in vain, or who lose
// one of them. Ranks are threads here; dying processes are in comm_faults_test.cpp.
#include "host/service/comm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "chassis/comm_call.hpp"
#include "tests/support/comm_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using test::RankEnd;
using test::RankPlugins;
using Axes = std::vector<std::string>;

struct Buffers {
  std::vector<float> send = std::vector<float>(4096, 1.0f), recv = std::vector<float>(4096);
};

chassis_collective_t call_of(uint32_t op, Buffers& buffers, uint64_t count, std::string_view name) {
  chassis_collective_t call{};
  call.struct_size = sizeof call;
  call.op = op;
  call.dtype = CHASSIS_DTYPE_F32;
  call.reduce = op == CHASSIS_COMM_REDUCE_SCATTER || op == CHASSIS_COMM_ALL_REDUCE ? CHASSIS_REDUCE_SUM : 0;
  call.send = buffers.send.data();
  call.recv = buffers.recv.data();
  call.count = count;
  call.name = {name.data(), name.size()};
  return call;
}

CommWork start_raw(Communicator& communicator, CommGroup& group, std::span<const chassis_collective_t> calls) {
  return communicator.start_raw(group, pointers_to(calls));
}

using Make = std::function<std::vector<chassis_collective_t>(int rank, Buffers& buffers)>;

// What each rank ends with that starts these calls, after some that agree, and waits.
std::vector<RankEnd> outcome(int num_ranks, std::chrono::milliseconds deadline, const Make& make) {
  return test::run_ranks(num_ranks, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = deadline},
                         [&](Communicator& communicator, RankPlugins&) {
                           Buffers buffers;
                           CommGroup& group = communicator.group({});
                           for (int i = 0; i < 3; ++i) {
                             const auto same = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "before");
                             CommWork work = start_raw(communicator, group, {&same, 1});
                             communicator.wait(work);
                           }
                           const std::vector<chassis_collective_t> calls = make(communicator.rank(), buffers);
                           CommWork work = start_raw(communicator, group, calls);
                           communicator.wait(work);
                         });
}

// All ranks end with a communication error that has these words.
void expect_told(const std::vector<RankEnd>& ends, const std::vector<std::string>& words) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].failed) << rank;
    EXPECT_EQ(ends[rank].code, ExitCode::kCommunication) << rank;
    for (const std::string& word : words) EXPECT_HAS(ends[rank].text, word);
  }
}

// Rank 1's call is another one; both are named on both ranks, long before the deadline.
void expect_difference(const std::function<void(chassis_collective_t&)>& change, const std::string& first,
                       const std::string& second) {
  const auto start = std::chrono::steady_clock::now();
  expect_told(outcome(2, 60s,
                      [&](int rank, Buffers& buffers) {
                        chassis_collective_t call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 1000, "layers.3");
                        if (rank == 1) change(call);
                        return std::vector{call};
                      }),
              {"two ranks make different calls in #4 of dp: rank 0: " + first + "; rank 1: " + second});
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(CallsThatDiffer, InTheirOp) {
  expect_difference(
      [](auto& call) {
        call.op = CHASSIS_COMM_REDUCE_SCATTER;
        call.reduce = CHASSIS_REDUCE_SUM;
      },
      "all_gather of 1000 f32 'layers.3'", "reduce_scatter of 1000 f32 'layers.3'");
}
TEST(CallsThatDiffer, InTheirDtype) {
  expect_difference([](auto& call) { call.dtype = CHASSIS_DTYPE_BF16; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 1000 bf16 'layers.3'");
}
TEST(CallsThatDiffer, InTheirCount) {
  expect_difference([](auto& call) { call.count = 1001; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 1001 f32 'layers.3'");
}
TEST(CallsThatDiffer, InTheirName) {
  expect_difference(
      [](auto& call) {
        call.name = {"layers.4", 8};
      },
      "all_gather of 1000 f32 'layers.3'", "all_gather of 1000 f32 'layers.4'");
}
TEST(CallsThatDiffer, InUnequalParts) {
  static constexpr uint64_t kCounts[] = {999, 1000};
  expect_difference([](auto& call) { call.counts = kCounts; }, "all_gather of 1000 f32 'layers.3'",
                    "all_gather of 999, 1000 f32 in all 'layers.3'");
}

TEST(CallsThatDiffer, InTheirReduction) {
  expect_told(outcome(2, 60s,
                      [](int rank, Buffers& buffers) {
                        chassis_collective_t call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "loss");
                        if (rank == 0) call.reduce = CHASSIS_REDUCE_MAX;
                        return std::vector{call};
                      }),
              {"rank 0: all_reduce (max) of 10 f32 'loss'; rank 1: all_reduce of 10 f32 'loss'"});
}

TEST(CallsThatDiffer, InTheRootOfABroadcast) {
  expect_told(outcome(2, 60s,
                      [](int rank, Buffers& buffers) {
                        chassis_collective_t call = call_of(CHASSIS_COMM_BROADCAST, buffers, 10, "w");
                        call.peer = rank;
                        return std::vector{call};
                      }),
              {"rank 0: broadcast of 10 f32 'w' from rank 0; rank 1: broadcast of 10 f32 'w' from rank 1"});
}

TEST(CallsThatDiffer, InOneOfManyCallsOfABatch) {
  expect_told(outcome(2, 60s,
                      [](int rank, Buffers& buffers) {
                        std::vector<chassis_collective_t> calls;
                        for (const char* name : {"a", "b", "c", "d"})
                          calls.push_back(call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, name));
                        if (rank == 1) calls[2].count = 11;
                        return calls;
                      }),
              {"rank 0: all_reduce of 10 f32 'c' (3 of 4); rank 1: all_reduce of 11 f32 'c' (3 of 4)"});
}

TEST(CallsThatDiffer, InTheirNumber) {
  expect_told(outcome(2, 60s,
                      [](int rank, Buffers& buffers) {
                        std::vector calls = {call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "a")};
                        if (rank == 0) calls.push_back(call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "b"));
                        return calls;
                      }),
              {"rank 0: all_reduce of 10 f32 'b' (2 of 2); rank 1: no further call"});
}

TEST(CallsThatDiffer, InTheirOrder) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                    [](Communicator& communicator, RankPlugins&) {
                                      Buffers buffers;
                                      std::vector<CommWork> works;
                                      const bool swap = communicator.rank() == 1;
                                      for (const char* name : {swap ? "b" : "a", swap ? "a" : "b"}) {
                                        const auto call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 500, name);
                                        works.push_back(start_raw(communicator, communicator.group({}), {&call, 1}));
                                      }
                                      communicator.wait(works[1]);  // of those in flight the first one differs
                                      communicator.wait(works[0]);
                                    });
  expect_told(ends,
              {"different calls in #1 of dp: rank 0: all_gather of 500 f32 'a'; rank 1: all_gather of 500 f32 'b'"});
}

TEST(CallsThatDiffer, OnOneOfThreeRanks) {
  expect_told(outcome(3, 60s,
                      [](int rank, Buffers& buffers) {
                        return std::vector{call_of(CHASSIS_COMM_ALL_REDUCE, buffers, rank == 1 ? 20 : 10, "x")};
                      }),
              {"make different calls in #4 of dp", "rank 1: all_reduce of 20 f32 'x'", "all_reduce of 10 f32 'x'"});
}

TEST(CallsThatDiffer, BetweenTwoRanksThatSendEachOther) {
  const auto ends = outcome(2, 60s, [](int rank, Buffers& buffers) {
    chassis_collective_t call =
        call_of(rank == 0 ? CHASSIS_COMM_SEND : CHASSIS_COMM_RECV, buffers, rank == 0 ? 10 : 12, "x");
    call.peer = 1 - rank;
    return std::vector{call};
  });
  expect_told(ends, {"what two ranks send each other does not match in #4 of dp: rank 0: send of 10 f32 'x' to rank 1; "
                     "rank 1: recv of 12 f32 'x' from rank 0"});
}

TEST(CallsThatDiffer, InWhatUnequalPartsAreExpected) {
  static constexpr uint64_t kGiven[] = {3, 5}, kExpected[] = {3, 6};
  const auto ends = outcome(2, 60s, [](int rank, Buffers& buffers) {
    chassis_collective_t call = call_of(CHASSIS_COMM_ALL_TO_ALL, buffers, 0, "tokens");
    call.counts = kGiven;
    call.recv_counts = rank == 0 ? kGiven : kExpected;
    return std::vector{call};
  });
  expect_told(ends, {"does not match in #4 of dp", "all_to_all of 3, 5 f32, receiving 3, 6 'tokens'"});
}

// Rank 1 does something else until the others are told.
std::vector<RankEnd> without_rank_1(std::chrono::milliseconds deadline, int num_ranks) {
  return test::run_ranks(num_ranks, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = deadline},
                         [](Communicator& communicator, RankPlugins&) {
                           Buffers buffers;
                           CommGroup& group = communicator.group({});
                           if (communicator.rank() == 1) {
                             communicator.world().set_deadline(60s);
                             communicator.world().wait_for([] { return false; }, [] { return "nobody failed"; });
                           }
                           const auto call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 100, "layers.0");
                           CommWork work = start_raw(communicator, group, {&call, 1});
                           communicator.wait(work);
                         });
}

TEST(WhoNeverComes, IsNamedWhenTheDeadlineIsOver) {
  expect_told(without_rank_1(500ms, 2),
              {"all_gather of 100 f32 'layers.0' (#1 of dp) was not done within", "rank 1 gave no sign"});
}

TEST(WhoNeverComes, IsToldFromThoseThatWait) {
  const auto ends = without_rank_1(2500ms, 4);
  expect_told(ends, {"was not done within 3 s: rank 1 gave no sign"});
  for (const RankEnd& end : ends) EXPECT_EQ(end.text.find("ranks"), std::string::npos) << end.text;
}

TEST(WhoNeverComes, WaitsElsewhere) {
  // Ranks 0 and 2 are neighbours on x; 2 meets 0 there before it comes to the group of all.
  const std::vector<MeshAxis> axes = {{"x", 2}, {"y", 2}};
  const auto ends = test::run_ranks(4, {.backend = "gloo", .options = Json::object(), .axes = axes, .deadline = 2500ms},
                                    [](Communicator& communicator, RankPlugins&) {
                                      CommGroup& all = communicator.group({});
                                      CommGroup& x = communicator.group(Axes{"x"});
                                      const auto meet = [&](CommGroup& group, const char* name) {
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
  expect_told(ends, {"barrier"});
  bool named = false;  // by whoever's deadline is over first
  for (const RankEnd& end : ends)
    named |= end.text.find("rank 2 waits in barrier 'first' (#1 of x)") != std::string::npos ||
             end.text.find("waits in barrier 'second' (#1 of x+y)") != std::string::npos;
  EXPECT_TRUE(named) << ends[0].text;
}

TEST(ARankThatFails, EndsTheOthersWithItsError) {
  for (int failing : {0, 2}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ends = test::run_ranks(3, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                      [&](Communicator& communicator, RankPlugins&) {
                                        Buffers buffers;
                                        const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 4000, "grad");
                                        for (int i = 0;; ++i) {
                                          CommWork work = start_raw(communicator, communicator.group({}), {&call, 1});
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

TEST(ARankThatFails, LeavesNobodyInAGroupThatIsBeingFormed) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 60s},
                                    [](Communicator& communicator, RankPlugins&) {
                                      if (communicator.rank() == 1) throw Error(ExitCode::kOutOfMemory, "no room");
                                      communicator.group({});
                                    });
  EXPECT_HAS(ends[0].text, "rank 1: no room");
  EXPECT_EQ(ends[0].code, ExitCode::kOutOfMemory);
}

void expect_all_well(const std::vector<RankEnd>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank)
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].text;
}

TEST(Groups, FollowTheAxesOfTheMesh) {
  const std::vector<MeshAxis> axes = {{"pp", 1}, {"dp_replicate", 2}, {"dp_shard", 2}};
  expect_all_well(test::run_ranks(
      4, {.backend = "gloo", .options = Json::object(), .axes = axes}, [](Communicator& c, RankPlugins&) {
        CommGroup& shard = c.group(Axes{"dp_shard"});
        CommGroup& replicate = c.group(Axes{"dp_replicate"});
        CommGroup& all = c.group({});
        EXPECT_EQ(shard.name(), "dp_shard");
        EXPECT_EQ(shard.ranks(), (c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}));
        EXPECT_EQ(shard.rank(), c.rank() % 2);
        EXPECT_EQ(replicate.ranks(), (c.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3}));
        EXPECT_EQ(all.name(), "dp_replicate+dp_shard");
        EXPECT_EQ(&all, &c.group(Axes{"dp_shard", "dp_replicate"}));
        EXPECT_EQ(&shard, &c.group(Axes{"pp", "dp_shard"}));
        EXPECT_EQ(c.group(Axes{"pp"}).size(), 1);
        CommGroup& pairs = c.group({}, 2);
        EXPECT_EQ(&pairs, &shard);  // the same ranks
        EXPECT_THROW(c.group(Axes{"tp"}), Error);
        EXPECT_THROW(c.group({}, 3), Error);

        // They move on their own: neighbours on one axis are not on the other.
        std::array<double, 1> value = {static_cast<double>(c.rank())};
        c.sum(shard, value, "shard");
        EXPECT_EQ(value[0], c.rank() < 2 ? 1 : 5);
        c.sum(replicate, value, "replicate");
        EXPECT_EQ(value[0], 6);
      }));
}

TEST(Groups, OfNeighboursAreCutByWays) {
  expect_all_well(test::run_ranks(4, {}, [](Communicator& c, RankPlugins&) {
    CommGroup& pair = c.group({}, 2);
    EXPECT_EQ(pair.name(), "dp:2");
    EXPECT_EQ(pair.ranks(), (c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}));
    EXPECT_EQ(c.group({}, 4).size(), 4);
    EXPECT_EQ(c.group({}, 1).size(), 1);
  }));
}

TEST(OneRank, CopiesByItself) {
  expect_all_well(test::run_ranks(1, {}, [](Communicator& c, RankPlugins&) {
    CommGroup& group = c.group(Axes{"dp"});
    EXPECT_EQ(group.size(), 1);
    Tensor send = Tensor::empty(std::array<int64_t, 1>{5}, Dtype::f32),
           recv = Tensor::zeros(std::array<int64_t, 1>{5}, Dtype::f32);
    send.fill(3);
    for (uint32_t op : {CHASSIS_COMM_ALL_GATHER, CHASSIS_COMM_REDUCE_SCATTER, CHASSIS_COMM_ALL_REDUCE,
                        CHASSIS_COMM_ALL_TO_ALL, CHASSIS_COMM_BROADCAST}) {
      recv.zero();
      Collective call;
      call.op = op;
      call.send = send;
      call.recv = recv;
      c.run(group, call);
      EXPECT_EQ(recv.data_as<float>()[4], 3) << op;
    }
    EXPECT_TRUE(c.take_counts().empty());
    EXPECT_EQ(c.backend(), nullptr);
  }));
}

TEST(Sums, HaveTheSameBitsEverywhereInTheOrderOfRanks) {
  std::vector<std::vector<double>> results(3);
  expect_all_well(test::run_ranks(3, {}, [&](Communicator& c, RankPlugins&) {
    std::vector<double> values = {0.1 * (c.rank() + 1), 1e16 * (c.rank() == 1 ? -1 : 1), 1.0 / (c.rank() + 3)};
    c.sum(c.group({}), values, "norms");
    results[static_cast<size_t>(c.rank())] = values;
  }));
  EXPECT_EQ(results[0], (std::vector<double>{(0.1 + 0.2) + 0.1 * 3, 1e16, (1.0 / 3 + 1.0 / 4) + 1.0 / 5}));
  for (int rank : {1, 2}) EXPECT_EQ(results[static_cast<size_t>(rank)], results[0]);
}

const CommCount* find(const std::vector<CommCount>& counts, const std::string& op) {
  for (const CommCount& count : counts)
    if (count.op == op) return &count;
  return nullptr;
}

TEST(Counts, AreThoseOfARing) {
  expect_all_well(test::run_ranks(4, {}, [](Communicator& c, RankPlugins& plugins) {
    CommGroup& group = c.group({});
    Buffers buffers;
    const auto run = [&](chassis_collective_t call) {
      CommWork work = start_raw(c, group, {&call, 1});
      c.wait(work);
    };
    run(call_of(CHASSIS_COMM_ALL_GATHER, buffers, 1000, "a"));
    run(call_of(CHASSIS_COMM_ALL_GATHER, buffers, 1000, "b"));
    run(call_of(CHASSIS_COMM_REDUCE_SCATTER, buffers, 1000, "c"));
    run(call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 1000, "d"));
    run(call_of(CHASSIS_COMM_ALL_TO_ALL, buffers, 1000, "e"));
    static constexpr uint64_t kCounts[] = {1, 2, 3, 4};
    chassis_collective_t unequal = call_of(CHASSIS_COMM_BROADCAST, buffers, 0, "f");
    unequal.op = CHASSIS_COMM_ALL_GATHER;
    unequal.counts = kCounts;
    run(unequal);

    const std::vector<CommCount> counts = c.take_counts();
    const CommCount& gathers = *find(counts, "all_gather");
    EXPECT_EQ(gathers.group, "dp");
    EXPECT_EQ(gathers.calls, 3u);
    EXPECT_EQ(gathers.bytes, 2 * 3 * 1000 * 4u + 10 * 4 * 3 / 4);
    EXPECT_GT(gathers.wait_ms, 0);
    EXPECT_EQ(find(counts, "reduce_scatter")->bytes, 3 * 1000 * 4u);
    EXPECT_EQ(find(counts, "all_reduce")->bytes, 2 * 3 * 250 * 4u);
    EXPECT_EQ(find(counts, "all_to_all")->bytes, 3 * 1000 * 4u);
    EXPECT_TRUE(c.take_counts().empty());

    write_metrics(counts, plugins.metrics());
    const auto metrics = plugins.metrics().take();
    const auto is = [&](const std::string& name, double value) {
      return std::find(metrics.begin(), metrics.end(), std::pair(name, value)) != metrics.end();
    };
    EXPECT_TRUE(is("comm/dp/all_reduce_bytes", 6000));
    EXPECT_TRUE(is("comm/dp/all_gather_calls", 3));
  }));
}

TEST(Tensors, AreKeptUntilTheWorkIsDone) {
  expect_all_well(test::run_ranks(2, {}, [](Communicator& c, RankPlugins&) {
    CommGroup& group = c.group({});
    const std::array<int64_t, 2> part = {3, 1000};
    const std::array<int64_t, 2> whole = {6, 1000};
    Tensor recv = Tensor::empty(whole, Dtype::f32);
    std::vector<Collective> calls(1);
    calls[0].op = CHASSIS_COMM_ALL_GATHER;
    calls[0].send = Tensor::empty(part, Dtype::f32);
    calls[0].send.fill(c.rank() + 1);
    calls[0].recv = recv;
    calls[0].name = "kept";
    CommWork work = c.start(group, std::move(calls));
    c.wait(work);
    EXPECT_FALSE(work);
    EXPECT_EQ(recv.data_as<float>()[0], 1);
    EXPECT_EQ(recv.data_as<float>()[5999], 2);
  }));
}

TEST(Works, ThatAreNotWaitedForGiveTheirGroupUp) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 5s},
                                    [](Communicator& c, RankPlugins&) {
                                      CommGroup& group = c.group({});
                                      if (c.rank() == 1) {
                                        std::this_thread::sleep_for(300ms);
                                        return;
                                      }
                                      Buffers buffers;
                                      const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 1000, "x");
                                      { CommWork dropped = start_raw(c, group, {&call, 1}); }
                                      // Nothing writes to the buffers any more.
                                      CommWork work = start_raw(c, group, {&call, 1});
                                      c.wait(work);
                                    });
  EXPECT_TRUE(ends[0].failed);
  EXPECT_FALSE(ends[1].failed) << ends[1].text;
}

// Any rank of any world in this process.
class Fake : public testing::Test {
 protected:
  Communicator make(std::vector<MeshAxis> axes, int rank) {
    return Communicator(plugins_.make("comm", "fake"), world_, MeshShape(std::move(axes)), rank, Device{});
  }
  RankPlugins plugins_;
  World world_;
};

TEST_F(Fake, StandsForAnyWorld) {
  Communicator c = make({{"dp_replicate", 64}, {"dp_shard", 128}}, 5000);
  EXPECT_TRUE(c.is_fake());
  CommGroup& shard = c.group(Axes{"dp_shard"});
  EXPECT_EQ(shard.size(), 128);
  EXPECT_EQ(shard.rank(), 5000 % 128);
  chassis_collective_t call{};
  call.struct_size = sizeof call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.dtype = CHASSIS_DTYPE_BF16;
  call.count = 1 << 20;
  for (int i = 0; i < 3; ++i) {
    CommWork work = start_raw(c, shard, {&call, 1});
    EXPECT_TRUE(work.done());
    c.wait(work);
  }
  const auto counts = c.take_counts();
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts[0].bytes, 3u * 127 * 2 * (1 << 20));
  std::array<double, 1> value = {2.5};
  c.sum(shard, value, "loss");
  EXPECT_EQ(value[0], 2.5);
}

TEST_F(Fake, ItsOrderTellsTwoProgramsApart) {
  const auto order_of = [&](const std::vector<const char*>& names) {
    Communicator c = make({{"dp", 4}}, 1);
    Buffers buffers;
    for (const char* name : names) {
      const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 100, name);
      CommWork work = start_raw(c, c.group({}), {&call, 1});
      c.wait(work);
    }
    double order = 0;
    for (const auto& [name, value] : plugins_.metrics().take()) {
      if (name == "fake/order") order = value;
      if (name == "fake/dp.0/all_reduce_calls") {
        EXPECT_EQ(value, static_cast<double>(names.size()));
      }
    }
    return order;
  };
  EXPECT_EQ(order_of({"a", "b"}), order_of({"a", "b"}));
  EXPECT_NE(order_of({"a", "b"}), order_of({"b", "a"}));
}

TEST_F(Fake, CallsThatAreNoneAreRefusedInWords) {
  Communicator c = make({{"dp", 4}}, 1);
  Buffers buffers;
  const auto refusal = [&](const std::function<void(chassis_collective_t&)>& change) -> std::string {
    chassis_collective_t call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 10, "w");
    change(call);
    try {
      start_raw(c, c.group({}), {&call, 1});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_HAS(refusal([](auto& call) { call.op = 99; }), "op 99");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = 99; }), "all_reduce 'w': dtype 99 is unknown");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = CHASSIS_DTYPE_U8; }), "u8 is not reduced");
  EXPECT_HAS(refusal([](auto& call) { call.reduce = 0; }), "reduction 0 is unknown");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = CHASSIS_DTYPE_I32, call.reduce = CHASSIS_REDUCE_AVG; }),
             "an average of i32");
  EXPECT_HAS(refusal([](auto& call) { call.op = CHASSIS_COMM_BROADCAST, call.peer = 4; }), "rank 4 of a group of 4");
  EXPECT_HAS(refusal([](auto& call) { call.op = CHASSIS_COMM_SEND, call.peer = 1; }), "to and from the same rank");
  EXPECT_HAS(refusal([](auto& call) {
               static constexpr uint64_t kCounts[4] = {};
               call.counts = kCounts;
             }),
             "counts that this op has no use for");
}

TEST(Buffers, ThatAreMissingAreRefused) {
  expect_all_well(test::run_ranks(2, {}, [](Communicator& c, RankPlugins&) {
    double one[] = {1.0};
    c.sum(c.group({}), one, "connect");  // a rank that leaves at its refusal would be missed otherwise
    Buffers buffers;
    chassis_collective_t call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 10, "w");
    call.recv = nullptr;
    try {
      start_raw(c, c.group({}), {&call, 1});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_HAS(error.what(), "all_gather 'w': recv is NULL, for 20 elements");
    }
  }));
}

TEST(Backends, RefuseDevicesInWords) {
  RankPlugins plugins;
  World world;
  try {
    Communicator(plugins.make("comm", "gloo"), world, MeshShape(), 0, Device{Device::Type::kCuda, 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_HAS(error.what(), "gloo serves memory of the CPU; this run is on CUDA: use nccl");
  }
}

}  // namespace
}  // namespace chassis
