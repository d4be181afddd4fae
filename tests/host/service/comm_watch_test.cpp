// Works that a stream waits for are released when done, and aborted when a rank fails or the deadline passes.
#include "host/service/comm_watch.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "tests/support/comm_ranks.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

// A backend whose works are done when the test sets `done`. The plugin instance is only used for its name.
struct Stub {
  std::atomic<bool> done = false, failed = false;
  std::atomic<int> num_released = 0, num_aborted = 0;
};
Stub& stub_of(void* work) { return *static_cast<Stub*>(work); }

chassis_comm_backend_t stub_table() {
  chassis_comm_backend_t table{};
  table.struct_size = sizeof table;
  table.done = [](chassis_instance*, chassis_backend_work_t* work) -> int32_t { return stub_of(work).done; };
  table.wait = [](chassis_instance*, chassis_backend_work_t* work, uint64_t) {
    if (stub_of(work).failed) return make_status(CHASSIS_INTERNAL, "lost");
    return stub_of(work).num_aborted > 0 ? make_status(CHASSIS_ABORTED, "the group was given up") : nullptr;
  };
  table.release = [](chassis_instance*, chassis_backend_work_t* work) { ++stub_of(work).num_released; };
  table.abort = [](chassis_instance*, chassis_backend_group_t* group) {
    ++stub_of(group).num_aborted;
    stub_of(group).done = true;
  };
  return table;
}

void wait_until(const std::function<bool()>& ready) {
  for (int i = 0; i < 3000 && !ready(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(ready());
}

class Watch : public testing::Test {
 protected:
  // Calls `body` with a watch of this rank that has one work, of the group of both ranks.
  void with_watch(World& world, const std::function<void(StreamWatch&, Flights&, Stub&)>& body) {
    test::RankPlugins plugins;
    const auto instance = plugins.make("comm", "fake");
    static const chassis_comm_backend_t table = stub_table();
    static const std::vector<int> ranks = {0, 1};
    Flights flights(world);
    Stub stub;
    {
      StreamWatch watch(*instance, table, flights);
      chassis_collective_t call{};
      call.struct_size = sizeof call;
      call.op = CHASSIS_COMM_BARRIER;
      call.name = {"step", 4};
      const chassis_collective_t* calls[] = {&call};
      const Flight& flight =
          flights.start({"dp", "dp.0", &ranks, world.rank(), 1, CommBatch(calls, ranks, world.rank(), false)});
      watch.add(reinterpret_cast<chassis_backend_work_t*>(&stub), reinterpret_cast<chassis_backend_group_t*>(&stub),
                flight);
      body(watch, flights, stub);
    }
    EXPECT_EQ(stub.num_released, 1);
  }

  StoreServer server_{"127.0.0.1", 0};
};

TEST_F(Watch, ReleasesWorksThatAreDone) {
  World world;
  with_watch(world, [](StreamWatch& watch, Flights&, Stub& stub) {
    watch.throw_if_failed();
    EXPECT_EQ(stub.num_released, 0);
    stub.done = true;
    wait_until([&] { return stub.num_released == 1; });
    watch.throw_if_failed();
    EXPECT_EQ(stub.num_aborted, 0);
  });
}

TEST_F(Watch, AnErrorOfAWorkNamesItsCall) {
  World world;
  with_watch(world, [](StreamWatch& watch, Flights&, Stub& stub) {
    stub.failed = true;
    stub.done = true;
    wait_until([&] { return stub.num_released == 1; });
    try {
      watch.throw_if_failed();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_HAS(error.what(), "plugin 'fake' 0.1.0 in wait: lost (call: barrier");
    }
  });
}

TEST_F(Watch, ReleasesRemainingWorksAtTheEnd) {
  World world;
  with_watch(world, [](StreamWatch&, Flights&, Stub&) {});
}

TEST_F(Watch, AbortsAfterTheDeadline) {
  std::thread other([&] {
    World world(test::test_launch(1, 2, server_.port()), 30s);
    EXPECT_THROW(world.wait_for([] { return false; }, [] { return "nobody failed"; }), RemoteError);
  });
  {
    World world(test::test_launch(0, 2, server_.port()), 30s);
    world.set_deadline(600ms);
    with_watch(world, [](StreamWatch& watch, Flights&, Stub& stub) {
      wait_until([&] { return stub.num_aborted > 0; });
      for (int i = 0; i < 2; ++i) {
        try {
          watch.throw_if_failed();
          ADD_FAILURE();
        } catch (const Error& error) {
          EXPECT_HAS(error.what(), "barrier 'step' (#1 of dp) was not done within 1 s: rank 1 did not respond");
        }
      }
    });
    other.join();
  }
}

TEST_F(Watch, AbortsWhenAnotherRankFails) {
  std::thread other([&] {
    World world(test::test_launch(1, 2, server_.port()), 30s);
    world.report_failure(Error(ExitCode::kNumeric, "loss is nan"));
  });
  {
    World world(test::test_launch(0, 2, server_.port()), 30s);
    with_watch(world, [](StreamWatch& watch, Flights&, Stub& stub) {
      wait_until([&] { return stub.num_aborted > 0; });
      EXPECT_THROW(watch.throw_if_failed(), RemoteError);
    });
    other.join();
  }
}

}  // namespace
}  // namespace chassis
