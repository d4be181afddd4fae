// Ranks as threads, each with its own World, over a real store; for the tests of World.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "host/launch/world.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {

// How a rank ended.
struct End {
  bool failed = false, remote = false;
  ExitCode code = ExitCode::kOk;
  std::string text;
  int result = 0;
};

inline End end_of(const std::function<int()>& body) {
  End end;
  try {
    end.result = body();
  } catch (const RemoteError& e) {
    end = {true, true, e.code(), e.what()};
  } catch (const Error& e) {
    end = {true, false, e.code(), e.what()};
  } catch (const std::bad_alloc&) {
    end = {true, false, ExitCode::kOutOfMemory, "bad_alloc"};
  } catch (const std::exception&) {
    const Error error = current_error();
    end = {true, false, error.code(), error.what()};
  }
  return end;
}

inline Launch rank_of(int rank, int size, int port) {
  Launch launch{.source = "test", .rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size};
  launch.master_port = port;
  launch.store_is_elsewhere = true;
  return launch;
}

inline std::vector<End> in_parallel(int num_ranks, const std::function<int(int rank)>& body) {
  std::vector<End> ends(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] { ends[static_cast<size_t>(rank)] = end_of([&] { return body(rank); }); });
  for (auto& thread : threads) thread.join();
  return ends;
}

// A run of num_ranks ranks, which all call `body`.
inline std::vector<End> run(int num_ranks, const std::function<int(World&)>& body) {
  StoreServer server("127.0.0.1", 0);
  return in_parallel(num_ranks, [&](int rank) {
    World world(rank_of(rank, num_ranks, server.port()), std::chrono::seconds(30));
    world.set_deadline(std::chrono::seconds(30));
    return world.run([&] { return body(world); });
  });
}

inline void expect_no_failures(const std::vector<End>& ends) {
  for (size_t rank = 0; rank < ends.size(); ++rank)
    EXPECT_FALSE(ends[rank].failed) << "rank " << rank << ": " << ends[rank].text;
}

// Every rank ended with the error of rank `origin`.
inline void expect_origin(const std::vector<End>& ends, size_t origin, ExitCode code, const std::string& text) {
  for (size_t rank = 0; rank < ends.size(); ++rank) {
    EXPECT_TRUE(ends[rank].failed) << rank;
    EXPECT_EQ(ends[rank].remote, rank != origin) << rank << ": " << ends[rank].text;
    EXPECT_EQ(ends[rank].code, code) << rank;
    EXPECT_HAS(ends[rank].text, (rank == origin ? "" : "rank " + std::to_string(origin) + ": ") + text);
  }
}

}  // namespace chassis
