// A rank sends kGreeting and its number, and one more byte when it leaves. The server polls all connections.
#include "host/launch/lifeline.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/thread.hpp"
#include "host/launch/address.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kGreeting = "chassis lifeline";
constexpr size_t kGreetingBytes = kGreeting.size() + sizeof(uint32_t);
constexpr char kGoodbye = 'q';
constexpr auto kGrace = 2s, kConnectTimeout = 3s;
// Strangers are connections that have not said which rank they are. A rank says so as soon as it is connected.
constexpr ptrdiff_t kMaxStrangers = 32;
constexpr auto kStrangerTime = 5s;

Error socket_error(const std::string& what, int error) {
  return Error(ExitCode::kCommunication, what + ": " + std::strerror(error));
}

void set_option(int socket, int level, int name, int value) { setsockopt(socket, level, name, &value, sizeof value); }

// A machine that is lost without closing its connections is noticed after a minute.
void keep_alive(int socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

File listening_socket(const SocketAddress& address) {
  File socket =
      File::adopt(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket of the lifelines");
  if (!socket.is_open()) throw socket_error("cannot open a socket", errno);
  if (address.family() == AF_INET6) set_option(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.descriptor(), address.get(), address.length) != 0 || listen(socket.descriptor(), 1024) != 0)
    throw socket_error("cannot listen for the ranks", errno);
  return socket;
}

// An empty address means all interfaces. If the machine has IPv6, an IPv6 socket accepts IPv4 too.
File listening_socket(const std::string& address) {
  if (!address.empty()) return listening_socket(resolve(address, 0).front());
  try {
    return listening_socket(resolve("::", 0).front());
  } catch (const Error&) {
    return listening_socket(resolve("0.0.0.0", 0).front());
  }
}

}  // namespace

struct LifelineServer::Impl {
  struct Connection {
    File socket;
    std::string received = "";
    std::optional<int> rank = std::nullopt;
    bool has_left = false;
    Clock::time_point deadline = Clock::now() + kStrangerTime;  // of a stranger
  };

  Impl(const std::string& address, int num_ranks, std::function<void(int)> gone)
      : num_ranks(num_ranks), gone(std::move(gone)), listener(listening_socket(address)) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw socket_error("cannot open a pipe", errno);
    wakes = File::adopt(ends[0], "pipe"), waker = File::adopt(ends[1], "pipe");
    thread = Thread("lifelines", [this] { serve(); });
  }
  ~Impl() {
    waker = File();  // the other end is then readable
    thread.join();
  }

  void serve() {
    while (true) {
      try {
        if (!serve_once()) return;
      } catch (const std::bad_alloc&) {  // the training thread reports it
        std::this_thread::sleep_for(100ms);
      }
    }
  }

  // False when the server is to end.
  bool serve_once() {
    std::vector<pollfd> polled = {{wakes.descriptor(), POLLIN, 0}, {listener.descriptor(), POLLIN, 0}};
    for (const Connection& connection : connections) polled.push_back({connection.socket.descriptor(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), timeout_ms()) < 0 && errno != EINTR) return false;
    if (polled[0].revents != 0) return false;
    for (size_t i = connections.size(); i-- > 0;)
      if (polled[i + 2].revents != 0 && !read(connections[i])) end(i);
    if (polled[1].revents != 0) accept_one();
    const auto now = Clock::now();
    std::erase_if(connections, [now](const Connection& one) { return !one.rank && one.deadline <= now; });
    for (; !dying.empty() && dying.front().second <= now; dying.erase(dying.begin())) report(dying.front().first);
    return true;
  }

  // Connections are in the order in which they came.
  std::vector<Connection>::iterator oldest_stranger() {
    return std::find_if(connections.begin(), connections.end(), [](const Connection& one) { return !one.rank; });
  }

  int timeout_ms() {
    if (!dying.empty()) return 100;
    const auto oldest = oldest_stranger();
    if (oldest == connections.end()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(oldest->deadline - Clock::now());
    return static_cast<int>(std::max<int64_t>(0, left.count()));
  }

  void report(int rank) {
    try {
      gone(rank);
    } catch (const Error&) {  // the store is lost, as its next user will report
    }
  }

  void accept_one() {
    File socket = File::adopt(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK), "rank");
    if (!socket.is_open()) return;
    // The newest connection may be that of a rank, and the oldest is not.
    const auto strangers = std::count_if(connections.begin(), connections.end(), [](const auto& c) { return !c.rank; });
    if (strangers >= kMaxStrangers) connections.erase(oldest_stranger());
    keep_alive(socket.descriptor());
    connections.push_back({std::move(socket)});
  }

  // False if the connection has ended, or is not that of a rank.
  bool read(Connection& connection) {
    std::array<char, 64> bytes{};
    const ssize_t num_read = recv(connection.socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (num_read < 0) return errno == EAGAIN || errno == EINTR;
    if (num_read == 0) return false;
    connection.received.append(bytes.data(), static_cast<size_t>(num_read));
    if (!connection.rank && connection.received.size() >= kGreetingBytes) {
      uint32_t rank = 0;
      std::memcpy(&rank, connection.received.data() + kGreeting.size(), sizeof rank);
      rank = ntohl(rank);
      if (!connection.received.starts_with(kGreeting) || rank >= static_cast<uint32_t>(num_ranks)) return false;
      connection.rank = static_cast<int>(rank);
    }
    if (!connection.rank) return true;
    connection.has_left |= connection.received.size() > kGreetingBytes;
    connection.received.resize(kGreetingBytes);
    return true;
  }

  void end(size_t index) {
    const Connection& connection = connections[index];
    if (connection.rank && !connection.has_left) {
      dying.emplace_back(*connection.rank, Clock::now() + kGrace);
      ++num_gone;
    }
    connections.erase(connections.begin() + static_cast<ptrdiff_t>(index));
  }

  const int num_ranks;
  const std::function<void(int)> gone;
  const File listener;
  File wakes, waker;
  std::vector<Connection> connections;
  std::vector<std::pair<int, Clock::time_point>> dying;  // ranks, in the order of their ends
  std::atomic<int> num_gone = 0;
  Thread thread;
};

LifelineServer::LifelineServer(const std::string& address, int num_ranks, std::function<void(int rank)> gone)
    : impl_(std::make_unique<Impl>(address, num_ranks, std::move(gone))) {
  SocketAddress here;
  here.length = sizeof here.storage;
  if (getsockname(impl_->listener.descriptor(), reinterpret_cast<sockaddr*>(&here.storage), &here.length) != 0)
    throw socket_error("cannot find the port of the lifelines", errno);
  port_ = here.port();
}

LifelineServer::~LifelineServer() = default;

int LifelineServer::num_gone() const { return impl_->num_gone; }

Lifeline::Lifeline(const std::string& address, int port, int rank) {
  int error = 0;
  for (const SocketAddress& there : resolve(address, port)) {
    File socket = File::adopt(::socket(there.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), "lifeline");
    if (!socket.is_open()) continue;
    const timeval limit{std::chrono::seconds(kConnectTimeout).count(), 0};
    setsockopt(socket.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    std::string greeting(kGreeting);
    const uint32_t number = htonl(static_cast<uint32_t>(rank));
    greeting.append(reinterpret_cast<const char*>(&number), sizeof number);
    if (connect(socket.descriptor(), there.get(), there.length) == 0 &&
        send(socket.descriptor(), greeting.data(), greeting.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(greeting.size())) {
      keep_alive(socket.descriptor());
      socket_ = std::move(socket);
      return;
    }
    error = errno;
  }
  throw socket_error(fmt::format("cannot connect to rank 0 at {}:{}", address, port), error);
}

void Lifeline::leave() noexcept { send(socket_.descriptor(), &kGoodbye, sizeof kGoodbye, MSG_NOSIGNAL); }

}  // namespace chassis
