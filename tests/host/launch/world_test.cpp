// Ranks that have met exchange texts, agree, and fail together. Whole processes are in spawn_test.cpp.
#include "host/launch/world.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <stdexcept>
#include <thread>

#include "host/plugin/status.hpp"
#include "tests/host/launch/world_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(World, AloneNeedsNoStoreAndAgreesWithItself) {
  World world;
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.store(), nullptr);
  EXPECT_EQ(world.exchange("x", "text"), std::vector<std::string>{"text"});
  world.expect_same("x", "text");
  world.barrier("x");
  world.throw_if_another_failed();
  EXPECT_THROW(world.run_and_agree("x", [] { throw storage_error("full"); }), Error);
  EXPECT_THROW(world.run([]() -> int { throw storage_error("full"); }), Error);
  EXPECT_EQ(world.run([] { return 75; }), 75);
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  EXPECT_EQ(world.num_cores(), CPU_COUNT(&cores));
}

TEST(World, ExchangeGivesEveryRankAllTexts) {
  for (int num_ranks : {2, 3, 8}) {
    expect_no_failures(run(num_ranks, [&](World& world) {
      for (int round = 0; round < 20; ++round) {
        const std::string mine = std::to_string(round) + " of rank " + std::to_string(world.rank());
        const auto texts = world.exchange("round", mine);
        EXPECT_EQ(texts.size(), static_cast<size_t>(num_ranks));
        for (int rank = 0; rank < num_ranks; ++rank)
          EXPECT_EQ(texts[static_cast<size_t>(rank)], std::to_string(round) + " of rank " + std::to_string(rank));
      }
      const std::string bytes("\0:5:\xff", 5);
      EXPECT_EQ(world.exchange("bytes", bytes).back(), bytes);
      EXPECT_EQ(world.exchange("nothing", "").front(), "");
      return 0;
    }));
  }
}

TEST(World, ExchangeTakesLongTexts) {
  expect_no_failures(run(3, [&](World& world) {
    const auto texts = world.exchange("long", std::string(size_t{5} << 20, static_cast<char>('a' + world.rank())));
    for (size_t rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(texts[rank] == std::string(size_t{5} << 20, static_cast<char>('a' + rank)));
    return 0;
  }));
}

TEST(World, ExchangesLeaveNoKeys) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  constexpr int kRounds = 30;
  expect_no_failures(in_parallel(3, [&](int rank) {
    World world(rank_of(rank, 3, server.port()), 30s);
    for (int round = 0; round < kRounds; ++round) world.barrier("round");
    return 0;
  }));
  int num_left = 0;
  for (int round = 0; round < kRounds; ++round)
    for (const char* end : {"0", "1", "2", "all"})
      num_left += store->find("exchange/" + std::to_string(round) + "/" + end).has_value();
  EXPECT_EQ(num_left, 1) << "the answer of the last round";
}

TEST(World, RanksInDifferentCallsAreNamed) {
  const auto ends = run(2, [](World& world) {
    world.barrier(world.rank() == 0 ? "save" : "stop");
    return 0;
  });
  expect_origin(ends, 0, ExitCode::kInternal,
                "the ranks are not at the same place: rank 1 at 'stop', rank 0 at 'save'");
}

TEST(World, ExpectSameNamesTheFirstRankThatDiffers) {
  const auto ends = run(4, [](World& world) {
    world.expect_same("the data", "sha256:1");
    world.expect_same("the configuration", world.rank() >= 2 ? "sha256:b" : "sha256:a");
    return 0;
  });
  expect_origin(ends, 2, ExitCode::kConfig,
                "the ranks differ in the configuration: 'sha256:b' on rank 2, 'sha256:a' on rank 0");
}

TEST(World, ExpectSameNamesTheFirstLinesThatDiffer) {
  const auto ends = run(3, [](World& world) {
    world.expect_same("the configuration",
                      world.rank() == 1 ? "seed = 1\nlr = 2\nsteps = 3" : "seed = 1\nlr = 1\nsteps = 4");
    return 0;
  });
  expect_origin(ends, 1, ExitCode::kConfig,
                "the ranks differ in the configuration: 'lr = 2' on rank 1, 'lr = 1' on rank 0");
}

TEST(World, TogetherAllRanksFailOrNone) {
  std::atomic<int> num_done = 0;
  auto ends = run(3, [&](World& world) {
    world.run_and_agree("opening", [&] { ++num_done; });
    EXPECT_EQ(num_done, 3) << "no rank continues before all have done it";
    world.run_and_agree("saving", [&] {
      if (world.rank() == 1) throw storage_error("disk full");
    });
    ADD_FAILURE() << "rank " << world.rank() << " went on";
    return 0;
  });
  expect_origin(ends, 1, ExitCode::kStorage, "disk full");

  ends = run(3, [&](World& world) {
    world.run_and_agree("saving", [&] {
      if (world.rank() == 1) throw std::bad_alloc();
      if (world.rank() == 2) throw std::runtime_error("later");
    });
    return 0;
  });
  EXPECT_EQ(ends[0].text, "rank 1: out of host memory");
  EXPECT_EQ(ends[0].code, ExitCode::kOutOfMemory);
  EXPECT_EQ(ends[1].text, "bad_alloc") << "its own error";
  EXPECT_EQ(ends[2].text, "internal error: later") << "its own error";
}

TEST(World, AFailureReachesAllRanksWhereverTheyWait) {
  Clock::time_point failed_at;
  std::array<double, 3> seconds{};
  const auto ends = run(4, [&](World& world) -> int {
    world.barrier("start");
    const size_t rank = static_cast<size_t>(world.rank());
    try {
      switch (rank) {
        case 0:
          world.barrier("next");
          break;
        case 1:
          world.wait_for([] { return false; }, [] { return "never"; });
          break;
        case 2:
          world.run_and_agree("saving", [] {});
          break;
        default:
          std::this_thread::sleep_for(200ms);
          failed_at = Clock::now();
          throw Error(ExitCode::kNumeric, "loss is nan").hint("lower the learning rate");
      }
    } catch (const RemoteError&) {
      seconds[rank] = std::chrono::duration<double>(Clock::now() - failed_at).count();
      throw;
    }
    return 0;
  });
  expect_origin(ends, 3, ExitCode::kNumeric, "loss is nan\nhint: lower the learning rate");
  for (double passed : seconds) EXPECT_LT(passed, 10.0);  // 0.1 s on an idle machine
}

TEST(World, OnlyTheFirstFailureIsPassedOn) {
  const auto ends = run(3, [&](World& world) -> int {
    world.barrier("start");
    if (world.rank() == 2) throw Error(ExitCode::kOutOfMemory, "out of device memory");
    try {
      world.barrier("next");
    } catch (const RemoteError& e) {
      world.report_failure(e);
      world.report_failure(internal_error("a consequence"));
    }
    world.throw_if_another_failed();
    return 0;
  });
  expect_origin(ends, 2, ExitCode::kOutOfMemory, "out of device memory");
}

TEST(World, ABrokenConnectionIsReplacedByItsCause) {
  const auto ends = run(2, [&](World& world) -> int {
    world.barrier("start");
    if (world.rank() == 0) throw Error(ExitCode::kCommunication, "connection closed by peer");
    std::this_thread::sleep_for(200ms);
    throw Error(ExitCode::kOutOfMemory, "out of device memory");
  });
  expect_origin(ends, 1, ExitCode::kOutOfMemory, "out of device memory");
}

TEST(World, AMistakeOfAllRanksIsReportedByOne) {
  const auto ends = run(4, [&](World&) -> int { throw config_error("run.toml:3: no such plugin"); });
  EXPECT_EQ(std::count_if(ends.begin(), ends.end(), [](const End& end) { return !end.remote; }), 1);
  for (const End& end : ends) EXPECT_EQ(end.code, ExitCode::kConfig);
}

TEST(World, AFailureWrappedByAPluginStillBelongsToTheOtherRank) {
  const auto ends = run(2, [&](World& world) -> int {
    world.barrier("start");
    if (world.rank() == 1) throw Error(ExitCode::kOutOfMemory, "out of device memory").hint("buy more");
    try {
      world.barrier("next");
    } catch (const RemoteError& e) {
      EXPECT_TRUE(world.is_failure_of_another(e));
      EXPECT_FALSE(world.is_failure_of_another(plugin_error("plugin 'fsdp2': " + std::string(e.what()))));
      chassis_status_t* const received = status_of_current_exception();
      const HostTable host({0, 20}, nullptr);
      try {
        throw_if_failed(host.get()->status_new(host.get(), CHASSIS_INTERNAL, str_of("no gradients"), received),
                        "plugin 'fsdp2'");
      } catch (const Error& wrapped) {
        EXPECT_EQ(dynamic_cast<const RemoteError*>(&wrapped), nullptr);
        EXPECT_TRUE(world.is_failure_of_another(wrapped));
        throw;
      }
    }
    return 0;
  });
  expect_origin(ends, 1, ExitCode::kOutOfMemory, "out of device memory");
}

TEST(World, ExceptionsOfOtherKindsEndTheRunToo) {
  expect_origin(run(2,
                    [&](World& world) -> int {
                      if (world.rank() == 1) throw std::runtime_error("surprise");
                      world.barrier("next");
                      return 0;
                    }),
                1, ExitCode::kInternal, "internal error: surprise");
  const auto ends = run(2, [&](World& world) -> int {
    if (world.rank() == 1) throw std::bad_alloc();
    world.barrier("next");
    return 0;
  });
  EXPECT_EQ(ends[0].text, "rank 1: out of host memory");
}

TEST(World, ARankMissingFromAnExchangeIsNamed) {
  const auto ends = run(3, [&](World& world) {
    world.barrier("start");
    if (world.rank() == 1) world.wait_for([] { return false; }, [] { return "never"; });
    world.set_deadline(300ms);
    world.barrier("save");
    return 0;
  });
  for (const End& end : ends) EXPECT_EQ(end.code, ExitCode::kCommunication);
  for (size_t rank : {size_t{0}, size_t{2}}) EXPECT_HAS(ends[rank].text, "save: waited 0.3 s for rank 1");
  EXPECT_TRUE(ends[1].remote);
}

}  // namespace
}  // namespace chassis
