// A connection that ends without a leave() counts as the death of its rank, and nothing else does.
#include "host/launch/lifeline.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "host/base/error.hpp"
#include "host/launch/address.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

File connected_to(int port) {
  const SocketAddress address = resolve("127.0.0.1", port).front();
  File socket = File::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  EXPECT_EQ(connect(socket.descriptor(), address.get(), address.length), 0);
  return socket;
}

struct Deaths {
  LifelineServer server{"127.0.0.1", 4, [this](int rank) {
                          const std::lock_guard lock(mutex);
                          ranks.push_back(rank);
                        }};
  std::mutex mutex;
  std::vector<int> ranks;

  Lifeline connect(int rank) const { return Lifeline("127.0.0.1", server.port(), rank); }
  // Returns the ranks reported until there are `count`, and for 300 ms more.
  std::vector<int> wait(size_t count) {
    const auto end = Clock::now() + 20s;
    for (bool done = false; !done && Clock::now() < end; std::this_thread::sleep_for(10ms)) {
      const std::lock_guard lock(mutex);
      done = ranks.size() >= count;
    }
    std::this_thread::sleep_for(300ms);
    const std::lock_guard lock(mutex);
    return ranks;
  }
};

TEST(Lifeline, ReportsTheRankWhoseConnectionEnds) {
  Deaths deaths;
  std::optional<Lifeline> first = deaths.connect(0), second = deaths.connect(1), third = deaths.connect(2);
  first->leave();
  first.reset();
  third.reset();
  EXPECT_EQ(deaths.wait(1), std::vector<int>{2});
  EXPECT_EQ(deaths.server.num_gone(), 1);
}

TEST(Lifeline, ConnectionsThatAreNoRanksAreClosed) {
  Deaths deaths;
  { const Lifeline beyond = deaths.connect(4); }
  for (const std::string text : {"", "c", "chassis", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"}) {
    const File socket = connected_to(deaths.server.port());
    send(socket.descriptor(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  std::optional<Lifeline> last = deaths.connect(3);
  last.reset();
  EXPECT_EQ(deaths.wait(1), std::vector<int>{3});
}

TEST(Lifeline, ManyConnectionsThatSayNothingDoNotKeepRanksOut) {
  Deaths deaths;
  std::optional<Lifeline> rank = deaths.connect(1);
  std::this_thread::sleep_for(100ms);  // so that the server knows it before the others come
  std::vector<File> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(connected_to(deaths.server.port()));
  std::optional<Lifeline> after = deaths.connect(2);
  std::this_thread::sleep_for(100ms);
  rank.reset();
  EXPECT_EQ(deaths.wait(1), std::vector<int>{1});
  after.reset();
  EXPECT_EQ(deaths.wait(2), (std::vector<int>{1, 2}));
}

TEST(Lifeline, OfTheConnectionsThatSayNothingTheOldestEndsFirst) {
  Deaths deaths;
  std::vector<File> silent;
  for (int i = 0; i < 33; ++i) silent.push_back(connected_to(deaths.server.port()));
  pollfd oldest{silent[0].descriptor(), POLLIN, 0}, others{silent[1].descriptor(), POLLIN, 0};
  EXPECT_EQ(poll(&oldest, 1, 2000), 1);
  EXPECT_EQ(poll(&others, 1, 0), 0) << "32 may stay";
  EXPECT_EQ(poll(&others, 1, 20'000), 1) << "until their time is over";
  char byte = 0;
  EXPECT_EQ(recv(others.fd, &byte, 1, 0), 0);
}

TEST(Lifeline, NobodyListens) {
  int port = 0;
  {
    const LifelineServer server("127.0.0.1", 1, [](int) {});
    port = server.port();
  }
  try {
    const Lifeline lifeline("127.0.0.1", port, 0);
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCommunication);
    EXPECT_NE(std::string(error.what()).find("cannot connect to rank 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace chassis
