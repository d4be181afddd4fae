// How ranks meet: missing, repeated and foreign ranks, the process that serves the store, addresses and cores.
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "host/launch/world.hpp"
#include "tests/host/launch/world_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

TEST(World, MissingRanksAreNamedOnAllThatArrived) {
  StoreServer server("127.0.0.1", 0);
  const auto ends = in_parallel(2, [&](int i) {
    World world(rank_of(i == 0 ? 0 : 2, 4, server.port()), 500ms);
    return 0;
  });
  EXPECT_FALSE(ends[0].remote);
  EXPECT_TRUE(ends[1].remote);
  for (const End& end : ends) {
    EXPECT_EQ(end.code, ExitCode::kCommunication);
    EXPECT_HAS(end.text, "2 of 4 ranks did not arrive within 0.5 s");
    EXPECT_HAS(end.text, ": 1, 3");
  }
}

TEST(World, TheFirstRankLogsWhichAreMissing) {
  StoreServer server("127.0.0.1", 0);
  testing::internal::CaptureStderr();
  expect_no_failures(in_parallel(4, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(2500ms);
    World world(rank_of(rank, 4, server.port()), 30s);
    return 0;
  }));
  EXPECT_HAS(testing::internal::GetCapturedStderr(), "waiting for 1 of 4 ranks: 2\n");
}

// The store of a run on one machine is not open to other machines.
TEST(World, RanksOfOneMachineMeetOnTheLoopback) {
  const int port = StoreServer("127.0.0.1", 0).port();
  expect_no_failures(in_parallel(2, [&](int rank) {
    Launch launch = rank_of(rank, 2, port);
    launch.store_is_elsewhere = false;
    World world(launch, 30s);
    return world.run([&] {
      world.run_and_agree("meeting", [] {});
      EXPECT_HAS(end_of([&] { return connect_store("127.0.0.2", port, 100ms), 0; }).text, "Connection refused");
      world.run_and_agree("leaving", [] {});
      return 0;
    });
  }));
}

TEST(World, AMissingFirstRankIsNamedToo) {
  StoreServer server("127.0.0.1", 0);
  const End end = end_of([&] {
    World world(rank_of(1, 2, server.port()), 100ms);
    return 0;
  });
  EXPECT_EQ(end.code, ExitCode::kCommunication);
  EXPECT_HAS(end.text, "rank 0 did not start the run within");
}

TEST(World, RanksOfWorldsOfDifferentSizesAreNamed) {
  StoreServer server("127.0.0.1", 0);
  const auto ends = in_parallel(2, [&](int rank) {
    World world(rank_of(rank, rank == 0 ? 2 : 4, server.port()), 10s);
    return 0;
  });
  for (const End& end : ends) {
    EXPECT_HAS(end.text, "rank 1 was started as one of 4 ranks, rank 0 as one of 2");
    EXPECT_HAS(end.text, "process " + std::to_string(getpid()) + " on ");
  }
}

TEST(World, ARankOfALargerWorldEndsTheRanksThatWait) {
  StoreServer server("127.0.0.1", 0);
  const auto ends = in_parallel(2, [&](int rank) {
    World world(rank_of(rank == 0 ? 0 : 3, rank == 0 ? 2 : 4, server.port()), 60s);
    return 0;
  });
  for (const End& end : ends) {
    EXPECT_EQ(end.code, ExitCode::kConfig);
    EXPECT_HAS(end.text, "rank 3 was started as one of 4 ranks, rank 0 as one of 2");
  }
}

TEST(World, TwoRanksOfOneLocalRankAreNamed) {
  StoreServer server("127.0.0.1", 0);
  const auto start = [&](const std::function<void(Launch&)>& change) {
    static int round = 0;
    const std::string prefix = std::to_string(++round);
    return in_parallel(3, [&](int rank) {
      Launch launch = rank_of(rank, 3, server.port());
      launch.store_prefix = prefix;
      change(launch);
      World world(launch, 30s);
      return 0;
    });
  };
  for (const End& end : start([](Launch& launch) { launch.local_rank = 0; })) {
    EXPECT_EQ(end.code, ExitCode::kConfig);
    EXPECT_HAS(end.text, "ranks 0 and 1 are both local rank 0 of one machine: process " + std::to_string(getpid()));
  }
  for (const End& end : start([](Launch& launch) { launch.local_rank = launch.rank == 2 ? 1 : launch.rank; }))
    EXPECT_HAS(end.text, "ranks 1 and 2 are both local rank 1 of one machine");
  // One machine may act as three.
  expect_no_failures(start([](Launch& launch) {
    launch.local_rank = 0;
    launch.node = std::to_string(launch.rank);
  }));
}

TEST(World, AnInvalidHostAddressIsNamed) {
  StoreServer server("127.0.0.1", 0);
  setenv("CHASSIS_HOST_ADDRESS", "no-such-host.invalid", 1);
  const auto ends = in_parallel(2, [&](int rank) {
    World world(rank_of(rank, 2, server.port()), 30s);
    return 0;
  });
  unsetenv("CHASSIS_HOST_ADDRESS");
  for (const End& end : ends) EXPECT_HAS(end.text, "CHASSIS_HOST_ADDRESS is 'no-such-host.invalid'");
}

TEST(World, AnArrivalThatNoRankWroteIsNamed) {
  StoreServer server("127.0.0.1", 0);
  auto client = connect_store("127.0.0.1", server.port(), 10s);
  for (const char* text : {"", "no JSON", "[]", "{\"machine\": 5}"}) {
    client->set("arrived/1", text);
    const End end = end_of([&] {
      World world(rank_of(0, 2, server.port()), 10s);
      return 0;
    });
    EXPECT_EQ(end.code, ExitCode::kCommunication);
    EXPECT_HAS(end.text, "the arrival of rank 1 was not written by this program");
    for (const char* key : {"starts/0", "failure", "world_size"}) client->erase(key);
  }
}

TEST(World, ASecondProcessOfARankIsRefusedAndTheRunContinues) {
  StoreServer server("127.0.0.1", 0);
  std::atomic<int> num_refused = 0;
  expect_no_failures(in_parallel(2, [&](int rank) {
    World world(rank_of(rank, 2, server.port()), 30s);
    if (rank == 1) {
      const End end = end_of([&] {
        World again(rank_of(1, 2, server.port()), 30s);
        return 0;
      });
      EXPECT_HAS(end.text, "two processes are rank 1 at the store at 127.0.0.1:");
      const std::string process = "process " + std::to_string(getpid()) + " on ";
      EXPECT_HAS(end.text, ": " + process);
      EXPECT_HAS(end.text, ", and " + process);
      ++num_refused;
    }
    return world.run([&] {
      world.barrier("all is well");
      return 0;
    });
  }));
  EXPECT_EQ(num_refused, 1);
}

TEST(World, TheFirstRankServesTheStoreUntilAllHaveLeft) {
  int port = 0;
  {
    StoreServer free_one("127.0.0.1", 0);
    port = free_one.port();
  }
  auto launch_of = [&](int rank) {
    Launch launch = rank_of(rank, 3, port);
    launch.store_is_elsewhere = false;
    return launch;
  };
  expect_no_failures(in_parallel(3, [&](int rank) {
    World world(launch_of(rank), 30s);
    world.barrier("start");
    if (rank == 2) {
      std::this_thread::sleep_for(300ms);  // the first rank is done by then
      world.store()->set("key", "value");
    }
    return 0;
  }));
  const auto ends = in_parallel(3, [&](int rank) {
    World world(launch_of(rank), 30s);
    return world.run([&]() -> int {
      if (rank == 0) throw config_error("the first rank failed");
      if (rank == 2) std::this_thread::sleep_for(300ms);
      world.barrier("next");
      return 0;
    });
  });
  expect_origin(ends, 0, ExitCode::kConfig, "the first rank failed");
}

TEST(World, APortInUseIsNamedOnTheFirstRank) {
  StoreServer other("127.0.0.1", 0);
  Launch launch = rank_of(0, 2, other.port());
  launch.store_is_elsewhere = false;
  const End end = end_of([&] {
    World world(launch, 30s);
    return 0;
  });
  EXPECT_EQ(end.code, ExitCode::kCommunication);
  EXPECT_HAS(end.text, "cannot serve the store on port " + std::to_string(other.port()) + ": Address already in use");
}

TEST(World, TheHostAddressIsOnTheRouteToTheMaster) {
  expect_no_failures(run(2, [](World& world) {
    EXPECT_EQ(world.host_address(), "127.0.0.1");
    return 0;
  }));
  setenv("CHASSIS_HOST_ADDRESS", "127.0.0.2", 1);
  expect_no_failures(run(2, [](World& world) {
    EXPECT_EQ(world.host_address(), "127.0.0.2");
    return 0;
  }));
  unsetenv("CHASSIS_HOST_ADDRESS");
}

TEST(World, CoresAreDividedAmongTheRanksThatShareThem) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  expect_no_failures(run(2, [&](World& world) {
    EXPECT_EQ(world.num_cores(), std::max(1, CPU_COUNT(&all) / 2));
    return 0;
  }));
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  StoreServer server("127.0.0.1", 0);
  expect_no_failures(in_parallel(2, [&](int rank) {  // mpirun binds its ranks like this
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &all) && seen++ == rank) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    World world(rank_of(rank, 2, server.port()), 30s);
    EXPECT_EQ(world.num_cores(), 1);
    return 0;
  }));
}

}  // namespace
}  // namespace chassis
