// Ranks as threads, each with a World of its own, over a real store. Whole processes are in spawn_test.cpp.
#include "host/launch/world.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <stdexcept>
#include <thread>

#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// How a rank ended.
struct End {
  bool failed = false, remote = false;
  ExitCode code = ExitCode::kOk;
  std::string text;
  int result = 0;
};

End end_of(const std::function<int()>& body) {
  End end;
  try {
    end.result = body();
  } catch (const RemoteError& e) {
    end = {true, true, e.code(), e.what()};
  } catch (const Error& e) {
    end = {true, false, e.code(), e.what()};
  } catch (const std::bad_alloc&) {
    end = {true, false, ExitCode::kOutOfMemory, "bad_alloc"};
  } catch (const std::exception& e) {
    end = {true, false, ExitCode::kInternal, e.what()};
  }
  return end;
}

Launch rank_of(int rank, int size, int port) {
  Launch launch{.source = "test", .rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size};
  launch.master_port = port;
  launch.store_is_elsewhere = true;
  return launch;
}

std::vector<End> in_parallel(int num_ranks, const std::function<int(int rank)>& body) {
  std::vector<End> ends(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] { ends[static_cast<size_t>(rank)] = end_of([&] { return body(rank); }); });
  for (auto& thread : threads) thread.join();
  return ends;
}

// A run of so many ranks; `body` is each rank's part.
std::vector<End> run(int num_ranks, const std::function<int(World&)>& body) {
  StoreServer server("127.0.0.1", 0);
  return in_parallel(num_ranks, [&](int rank) {
    World world(rank_of(rank, num_ranks, server.port()), 30s);
    world.set_deadline(30s);
    return world.run([&] { return body(world); });
  });
}

void expect_all_well(const std::vector<End>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank)
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].text;
}

// All ranks but `origin` ended with its error.
void expect_origin(const std::vector<End>& ends, size_t origin, ExitCode code, const std::string& text) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].failed) << rank;
    EXPECT_EQ(ends[rank].remote, rank != origin) << rank << ": " << ends[rank].text;
    EXPECT_EQ(ends[rank].code, code) << rank;
    EXPECT_HAS(ends[rank].text, (rank == origin ? "" : "rank " + std::to_string(origin) + ": ") + text);
  }
}

TEST(World, AloneNeedsNoStoreAndAgreesWithItself) {
  World world;
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.store(), nullptr);
  EXPECT_EQ(world.exchange("x", "text"), std::vector<std::string>{"text"});
  world.expect_same("x", "text");
  world.barrier("x");
  world.throw_if_another_failed();
  EXPECT_THROW(world.together("x", [] { throw storage_error("full"); }), Error);
  EXPECT_THROW(world.run([]() -> int { throw storage_error("full"); }), Error);
  EXPECT_EQ(world.run([] { return 75; }), 75);
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  EXPECT_EQ(world.num_cores(), CPU_COUNT(&cores));
}

TEST(World, ExchangeGivesEveryRankAllTexts) {
  for (int num_ranks : {2, 3, 8}) {
    expect_all_well(run(num_ranks, [&](World& world) {
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
  expect_all_well(run(3, [&](World& world) {
    const auto texts = world.exchange("long", std::string(size_t{5} << 20, static_cast<char>('a' + world.rank())));
    for (size_t rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(texts[rank] == std::string(size_t{5} << 20, static_cast<char>('a' + rank)));
    return 0;
  }));
}

TEST(World, ExchangesLeaveNothingBehind) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  constexpr int kRounds = 30;
  expect_all_well(in_parallel(3, [&](int rank) {
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

TEST(World, RanksAtDifferentPlacesAreNamed) {
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
    world.together("opening", [&] { ++num_done; });
    EXPECT_EQ(num_done, 3) << "nobody goes on before all have done it";
    world.together("saving", [&] {
      if (world.rank() == 1) throw storage_error("disk full");
    });
    ADD_FAILURE() << "rank " << world.rank() << " went on";
    return 0;
  });
  expect_origin(ends, 1, ExitCode::kStorage, "disk full");

  ends = run(3, [&](World& world) {
    world.together("saving", [&] {
      if (world.rank() == 1) throw std::bad_alloc();
      if (world.rank() == 2) throw std::runtime_error("later");
    });
    return 0;
  });
  EXPECT_EQ(ends[0].text, "rank 1: out of host memory");
  EXPECT_EQ(ends[0].code, ExitCode::kOutOfMemory);
  EXPECT_EQ(ends[1].text, "bad_alloc") << "its own error";
  EXPECT_EQ(ends[2].text, "later") << "its own error";
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
          world.together("saving", [] {});
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
      world.report_failure(internal_error("what came of it"));
    }
    world.throw_if_another_failed();
    return 0;
  });
  expect_origin(ends, 2, ExitCode::kOutOfMemory, "out of device memory");
}

TEST(World, ABrokenConnectionGivesWayToWhatBrokeIt) {
  const auto ends = run(2, [&](World& world) -> int {
    world.barrier("start");
    if (world.rank() == 0) throw Error(ExitCode::kCommunication, "connection closed by peer");
    std::this_thread::sleep_for(200ms);
    throw Error(ExitCode::kOutOfMemory, "out of device memory");
  });
  expect_origin(ends, 1, ExitCode::kOutOfMemory, "out of device memory");
}

TEST(World, TheMistakeOfAllRanksIsToldByOne) {
  const auto ends = run(4, [&](World&) -> int { throw config_error("run.toml:3: no such plugin"); });
  EXPECT_EQ(std::count_if(ends.begin(), ends.end(), [](const End& end) { return !end.remote; }), 1);
  for (const End& end : ends) EXPECT_EQ(end.code, ExitCode::kConfig);
}

TEST(World, AFailureThatComesBackThroughAPluginIsStillTheOtherRanks) {
  const auto ends = run(2, [&](World& world) -> int {
    world.barrier("start");
    if (world.rank() == 1) throw Error(ExitCode::kOutOfMemory, "out of device memory").hint("buy more");
    try {
      world.barrier("next");
    } catch (const RemoteError& e) {
      throw plugin_error("plugin 'fsdp2': " + std::string(e.what()));
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
                1, ExitCode::kInternal, "surprise");
  const auto ends = run(2, [&](World& world) -> int {
    if (world.rank() == 1) throw std::bad_alloc();
    world.barrier("next");
    return 0;
  });
  EXPECT_EQ(ends[0].text, "rank 1: out of host memory");
}

TEST(World, ARankThatDoesNotComeToAnExchangeIsNamed) {
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

TEST(World, RanksMissingAtTheStartAreNamedOnAllThatCame) {
  StoreServer server("127.0.0.1", 0);
  const auto ends = in_parallel(2, [&](int i) {
    World world(rank_of(i == 0 ? 0 : 2, 4, server.port()), 500ms);
    return 0;
  });
  EXPECT_FALSE(ends[0].remote);
  EXPECT_TRUE(ends[1].remote);
  for (const End& end : ends) {
    EXPECT_EQ(end.code, ExitCode::kCommunication);
    EXPECT_HAS(end.text, "2 of 4 ranks did not come within 0.5 s");
    EXPECT_HAS(end.text, ": 1, 3");
  }
}

TEST(World, TheFirstRankTellsWhoIsMissing) {
  StoreServer server("127.0.0.1", 0);
  testing::internal::CaptureStderr();
  expect_all_well(in_parallel(4, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(2500ms);
    World world(rank_of(rank, 4, server.port()), 30s);
    return 0;
  }));
  EXPECT_HAS(testing::internal::GetCapturedStderr(), "waiting for 1 of 4 ranks: 2\n");
}

// Other machines have no business at the store of a run that lies on one.
TEST(World, RanksOfOneMachineMeetWhereNoOtherReachesThem) {
  const int port = StoreServer("127.0.0.1", 0).port();
  expect_all_well(in_parallel(2, [&](int rank) {
    Launch launch = rank_of(rank, 2, port);
    launch.store_is_elsewhere = false;
    World world(launch, 30s);
    return world.run([&] {
      world.together("meeting", [] {});
      EXPECT_HAS(end_of([&] { return connect_store("127.0.0.2", port, 100ms), 0; }).text, "Connection refused");
      world.together("parting", [] {});
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

TEST(World, ARankOfALargerWorldEndsThoseWhoWouldWaitForOthers) {
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
  // One machine may play three.
  expect_all_well(start([](Launch& launch) {
    launch.local_rank = 0;
    launch.node = std::to_string(launch.rank);
  }));
}

TEST(World, AnAddressThatIsNoneIsNamed) {
  StoreServer server("127.0.0.1", 0);
  setenv("CHASSIS_HOST_ADDRESS", "no-such-host.invalid", 1);
  const auto ends = in_parallel(2, [&](int rank) {
    World world(rank_of(rank, 2, server.port()), 30s);
    return 0;
  });
  unsetenv("CHASSIS_HOST_ADDRESS");
  for (const End& end : ends) EXPECT_HAS(end.text, "CHASSIS_HOST_ADDRESS is 'no-such-host.invalid'");
}

TEST(World, WhatAStrangerSaysForARankIsNamed) {
  StoreServer server("127.0.0.1", 0);
  auto stranger = connect_store("127.0.0.1", server.port(), 10s);
  for (const char* text : {"", "no JSON", "[]", "{\"machine\": 5}"}) {
    stranger->set("arrived/1", text);
    const End end = end_of([&] {
      World world(rank_of(0, 2, server.port()), 10s);
      return 0;
    });
    EXPECT_EQ(end.code, ExitCode::kCommunication);
    EXPECT_HAS(end.text, "what rank 1 says of itself was not written by this program");
    for (const char* key : {"starts/0", "failure", "world_size"}) stranger->erase(key);
  }
}

TEST(World, TwoProcessesOfOneRankAreNamedAndDoNoHarm) {
  StoreServer server("127.0.0.1", 0);
  std::atomic<int> num_refused = 0;
  expect_all_well(in_parallel(2, [&](int rank) {
    World world(rank_of(rank, 2, server.port()), 30s);
    if (rank == 1) {
      const End end = end_of([&] {
        World again(rank_of(1, 2, server.port()), 30s);
        return 0;
      });
      EXPECT_HAS(end.text, "there are two of rank 1 at the store at 127.0.0.1:");
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
  auto serve_itself = [&](int rank) {
    Launch launch = rank_of(rank, 3, port);
    launch.store_is_elsewhere = false;
    return launch;
  };
  expect_all_well(in_parallel(3, [&](int rank) {
    World world(serve_itself(rank), 30s);
    world.barrier("start");
    if (rank == 2) {
      std::this_thread::sleep_for(300ms);  // the first rank has long been done
      world.store()->set("key", "value");
    }
    return 0;
  }));
  const auto ends = in_parallel(3, [&](int rank) {
    World world(serve_itself(rank), 30s);
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

TEST(World, TheHostAddressLeadsToTheMaster) {
  expect_all_well(run(2, [](World& world) {
    EXPECT_EQ(world.host_address(), "127.0.0.1");
    return 0;
  }));
  setenv("CHASSIS_HOST_ADDRESS", "127.0.0.2", 1);
  expect_all_well(run(2, [](World& world) {
    EXPECT_EQ(world.host_address(), "127.0.0.2");
    return 0;
  }));
  unsetenv("CHASSIS_HOST_ADDRESS");
}

TEST(World, CoresAreDividedAmongTheRanksThatShareThem) {
  cpu_set_t all;
  sched_getaffinity(0, sizeof all, &all);
  expect_all_well(run(2, [&](World& world) {
    EXPECT_EQ(world.num_cores(), std::max(1, CPU_COUNT(&all) / 2));
    return 0;
  }));
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core";
  StoreServer server("127.0.0.1", 0);
  expect_all_well(in_parallel(2, [&](int rank) {  // as mpirun binds its ranks
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
