// Groups, counts and sums of a Communicator. Ranks are threads here.
#include "host/service/comm.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <thread>

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

void expect_success(const std::vector<RankEnd>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank)
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].text;
}

TEST(Groups, FollowTheAxesOfTheMesh) {
  const std::vector<MeshAxis> axes = {{"pp", 1}, {"dp_replicate", 2}, {"dp_shard", 2}};
  expect_success(test::run_ranks(
      4, {.backend = "gloo", .options = Json::object(), .axes = axes}, [](Communicator& c, RankPlugins&) {
        ProcessGroup& shard = c.group(Axes{"dp_shard"});
        ProcessGroup& replicate = c.group(Axes{"dp_replicate"});
        ProcessGroup& all = c.group({});
        EXPECT_EQ(shard.name(), "dp_shard");
        EXPECT_EQ(shard.ranks(), (c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}));
        EXPECT_EQ(shard.rank(), c.rank() % 2);
        EXPECT_EQ(replicate.ranks(), (c.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3}));
        EXPECT_EQ(all.name(), "dp_replicate+dp_shard");
        EXPECT_EQ(&all, &c.group(Axes{"dp_shard", "dp_replicate"}));
        EXPECT_EQ(&shard, &c.group(Axes{"pp", "dp_shard"}));
        EXPECT_EQ(c.group(Axes{"pp"}).size(), 1);
        ProcessGroup& pairs = c.group({}, 2);
        EXPECT_EQ(&pairs, &shard);  // the same ranks
        EXPECT_THROW(c.group(Axes{"tp"}), Error);
        EXPECT_THROW(c.group({}, 3), Error);

        // Groups of different axes are independent.
        std::array<double, 1> value = {static_cast<double>(c.rank())};
        c.sum(shard, value, "shard");
        EXPECT_EQ(value[0], c.rank() < 2 ? 1 : 5);
        c.sum(replicate, value, "replicate");
        EXPECT_EQ(value[0], 6);
      }));
}

TEST(Groups, CanBeDividedIntoNeighbours) {
  expect_success(test::run_ranks(4, {}, [](Communicator& c, RankPlugins&) {
    ProcessGroup& pair = c.group({}, 2);
    EXPECT_EQ(pair.name(), "dp:2");
    EXPECT_EQ(pair.ranks(), (c.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}));
    EXPECT_EQ(c.group({}, 4).size(), 4);
    EXPECT_EQ(c.group({}, 1).size(), 1);
    std::array<double, 1> value = {1};
    c.sum(c.group({}, 4), value, "end");  // a rank that leaves earlier closes connections that others still make
    c.sum(pair, value, "end of pairs");
  }));
}

TEST(OneRank, CopiesItsOwnBuffers) {
  expect_success(test::run_ranks(1, {}, [](Communicator& c, RankPlugins&) {
    ProcessGroup& group = c.group(Axes{"dp"});
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

TEST(Sums, AreInRankOrderWithTheSameBitsOnAllRanks) {
  std::vector<std::vector<double>> results(3);
  expect_success(test::run_ranks(3, {}, [&](Communicator& c, RankPlugins&) {
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
  expect_success(test::run_ranks(4, {}, [](Communicator& c, RankPlugins& plugins) {
    ProcessGroup& group = c.group({});
    Buffers buffers;
    const auto run = [&](chassis_collective_t call) {
      CommHandle work = start_raw(c, group, {&call, 1});
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

TEST(Tensors, AreKeptAliveUntilTheWorkIsDone) {
  expect_success(test::run_ranks(2, {}, [](Communicator& c, RankPlugins&) {
    ProcessGroup& group = c.group({});
    const std::array<int64_t, 2> part = {3, 1000};
    const std::array<int64_t, 2> whole = {6, 1000};
    Tensor recv = Tensor::empty(whole, Dtype::f32);
    std::vector<Collective> calls(1);
    calls[0].op = CHASSIS_COMM_ALL_GATHER;
    calls[0].send = Tensor::empty(part, Dtype::f32);
    calls[0].send.fill(c.rank() + 1);
    calls[0].recv = recv;
    calls[0].name = "kept";
    CommHandle work = c.start(group, std::move(calls));
    c.wait(work);
    EXPECT_FALSE(work);
    EXPECT_EQ(recv.data_as<float>()[0], 1);
    EXPECT_EQ(recv.data_as<float>()[5999], 2);
  }));
}

TEST(Works, AbortTheirGroupIfTheyAreNotWaitedFor) {
  const auto ends = test::run_ranks(2, {.backend = "gloo", .options = Json::object(), .axes = {}, .deadline = 5s},
                                    [](Communicator& c, RankPlugins&) {
                                      ProcessGroup& group = c.group({});
                                      if (c.rank() == 1) {
                                        std::this_thread::sleep_for(300ms);
                                        return;
                                      }
                                      Buffers buffers;
                                      const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 1000, "x");
                                      { CommHandle dropped = start_raw(c, group, {&call, 1}); }
                                      // Nothing writes to the buffers any more.
                                      CommHandle work = start_raw(c, group, {&call, 1});
                                      c.wait(work);
                                    });
  EXPECT_TRUE(ends[0].failed);
  EXPECT_FALSE(ends[1].failed) << ends[1].text;
}

// A communicator that can be any rank of any world, in this process.
class FakeBackend : public testing::Test {
 protected:
  Communicator make(std::vector<MeshAxis> axes, int rank) {
    return Communicator(plugins_.make("comm", "fake"), world_, MeshShape(std::move(axes)), rank, Device{});
  }
  RankPlugins plugins_;
  World world_;
};

TEST_F(FakeBackend, NeedsNoOtherRank) {
  Communicator c = make({{"dp_replicate", 64}, {"dp_shard", 128}}, 5000);
  EXPECT_TRUE(c.moves_nothing());
  ProcessGroup& shard = c.group(Axes{"dp_shard"});
  EXPECT_EQ(shard.size(), 128);
  EXPECT_EQ(shard.rank(), 5000 % 128);
  chassis_collective_t call{};
  call.struct_size = sizeof call;
  call.op = CHASSIS_COMM_ALL_GATHER;
  call.dtype = CHASSIS_DTYPE_BF16;
  call.count = 1 << 20;
  for (int i = 0; i < 3; ++i) {
    CommHandle work = start_raw(c, shard, {&call, 1});
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

TEST_F(FakeBackend, HasAMetricThatDependsOnTheOrderOfCalls) {
  const auto order_of = [&](const std::vector<const char*>& names) {
    Communicator c = make({{"dp", 4}}, 1);
    Buffers buffers;
    for (const char* name : names) {
      const auto call = call_of(CHASSIS_COMM_ALL_REDUCE, buffers, 100, name);
      CommHandle work = start_raw(c, c.group({}), {&call, 1});
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

TEST_F(FakeBackend, RefusesInvalidCallsWithAReason) {
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
  EXPECT_HAS(refusal([](auto& call) { call.op = 99; }), "op 99 is unknown");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = 99; }), "all_reduce 'w': dtype 99 is unknown");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = CHASSIS_DTYPE_U8; }), "u8 cannot be reduced");
  EXPECT_HAS(refusal([](auto& call) { call.reduce = 0; }), "reduction 0 is unknown");
  EXPECT_HAS(refusal([](auto& call) { call.dtype = CHASSIS_DTYPE_I32, call.reduce = CHASSIS_REDUCE_AVG; }),
             "i32 cannot be averaged");
  EXPECT_HAS(refusal([](auto& call) { call.op = CHASSIS_COMM_BROADCAST, call.peer = 4; }),
             "peer 4 is not in the group, which has 4 ranks");
  EXPECT_HAS(refusal([](auto& call) { call.op = CHASSIS_COMM_SEND, call.peer = 1; }),
             "the peer is the calling rank itself");
  EXPECT_HAS(refusal([](auto& call) {
               static constexpr uint64_t kCounts[4] = {};
               call.counts = kCounts;
             }),
             "this op does not use these counts");
}

TEST(Buffers, AreRefusedIfTheyAreNull) {
  expect_success(test::run_ranks(2, {}, [](Communicator& c, RankPlugins&) {
    double one[] = {1.0};
    // Otherwise a rank that ends after its refusal is missing when the group is formed.
    c.sum(c.group({}), one, "connect");
    Buffers buffers;
    chassis_collective_t call = call_of(CHASSIS_COMM_ALL_GATHER, buffers, 10, "w");
    call.recv = nullptr;
    try {
      start_raw(c, c.group({}), {&call, 1});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_HAS(error.what(), "all_gather 'w': recv is NULL, expected 20 elements");
    }
  }));
}

TEST(Backends, RefuseADeviceThatTheyDoNotServe) {
  RankPlugins plugins;
  World world;
  try {
    Communicator(plugins.make("comm", "gloo"), world, MeshShape(), 0, device_of(*device_spec_named("cuda")));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_HAS(error.what(), "gloo serves memory of the CPU; this run is on CUDA: use nccl");
  }
}

}  // namespace
}  // namespace chassis