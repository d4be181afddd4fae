// Serves short requests on 127.0.0.1 or on a Unix socket, with bounds that hold against every client: connections,
// bytes of a request, time. One thread, which sleeps unless there is something to do. The caller defines requests.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "chassis/namespace.hpp"

CHASSIS_SDK_BEGIN

struct ListenerLimits {
  size_t num_connections = 32;  // further ones are closed at once
  size_t num_followers = 16;    // of these
  size_t request_bytes = 8192;
  std::chrono::milliseconds request_time{2000};  // from the connection to the end of its request
  // The time for an answer, and for each message to a follower: this, plus the time that its bytes take at the lowest
  // speed.
  std::chrono::milliseconds answer_time{5000};
  size_t least_bytes_per_second = 64 << 10;
  std::chrono::milliseconds follower_interval{1000};  // between two messages
  std::chrono::milliseconds heartbeat_interval{5000};
};

struct ListenerAnswer {
  std::string bytes = {};
  bool follows = false;  // after the answer the client gets what is published; else the connection is closed
};

// Called on the listener's thread. If a function throws, the connection is closed.
struct ListenerProtocol {
  // The size in bytes of the request at the start of `received`; 0 if it is still incomplete.
  std::function<size_t(std::string_view received)> request_size;
  // `may_follow`: true if there is room for a follower.
  std::function<ListenerAnswer(std::string_view request, bool may_follow)> answer;
  std::string too_long = {};   // the answer to a request that exceeds limits.request_bytes
  std::string heartbeat = {};  // sent to followers that got nothing else, to detect those that are gone
};

// A connection answers one request; whatever a client sends after it is read and discarded.
class Listener {
 public:
  // Throws std::system_error if the port is not available. Port 0: any free port.
  Listener(uint16_t port, ListenerProtocol protocol, ListenerLimits limits = {})
      : protocol_(std::move(protocol)), limits_(limits) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const std::string what = "port " + std::to_string(port) + " of 127.0.0.1";
    listener_ = Descriptor(socket(AF_INET, kSocketType, 0));
    const int yes = 1;  // allows a port whose last connections the system still remembers
    if (!listener_.is_open() || setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      fail(what);
    port_ = ntohs(address.sin_port);
    start(what);
  }
  // A Unix socket with mode 0600, for clients of this user and of root; the destructor removes the path. Throws
  // std::system_error. A socket that a dead process left at this path is replaced.
  Listener(const std::string& path, ListenerProtocol protocol, ListenerLimits limits = {})
      : protocol_(std::move(protocol)), limits_(limits) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string what = "socket '" + path + "'";
    if (path.empty() || path.size() >= sizeof address.sun_path) errno = ENAMETOOLONG, fail(what);
    path.copy(address.sun_path, path.size());
    remove_dead_socket(address);
    listener_ = Descriptor(socket(AF_UNIX, kSocketType, 0));
    // The path gets the mode of the socket.
    if (!listener_.is_open() || fchmod(listener_.get(), S_IRUSR | S_IWUSR) != 0 ||
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      fail(what);
    path_ = path;
    try {
      start(what);
    } catch (...) {
      unlink(path.c_str());
      throw;
    }
  }
  // Closes all connections at once.
  ~Listener() {
    is_ending_ = true;
    wake();
    thread_.join();
    if (!path_.empty()) unlink(path_.c_str());
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return port_; }
  // [any] Sends a message to every follower, including those that connect later. Each gets the newest message, not
  // every one.
  void publish(std::string message) {
    {
      const std::lock_guard lock(mutex_);
      message_ = std::move(message);
      ++num_messages_;
    }
    if (awaits_message_.exchange(false)) wake();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kSocketType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  static constexpr size_t kMaxForgottenBytes = 64 << 10;
  static constexpr std::chrono::milliseconds kPause{100};  // after a connection that could not be accepted

  class Descriptor {
   public:
    explicit Descriptor(int file = -1) : file_(file) {}
    Descriptor(Descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(file_, other.file_);
      return *this;
    }
    ~Descriptor() {
      if (file_ >= 0) close(file_);
    }
    bool is_open() const { return file_ >= 0; }
    int get() const { return file_; }

   private:
    int file_;
  };

  enum class State { kReads, kWrites, kFollows, kEnds, kClosed };
  struct Connection {
    Descriptor file;
    Clock::time_point deadline;
    State state = State::kReads;
    bool follows = false;       // after the answer
    std::string received = {};  // of the request
    std::string unsent = {};
    size_t num_sent = 0, num_forgotten = 0;
    uint64_t seen = 0;            // messages
    Clock::time_point next = {};  // no message to this follower before then

    bool has_unsent() const { return num_sent < unsent.size(); }
  };

  [[noreturn]] static void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
  }

  static void remove_dead_socket(const sockaddr_un& address) {
    struct stat info {};
    if (lstat(address.sun_path, &info) != 0 || !S_ISSOCK(info.st_mode)) return;
    const Descriptor probe(socket(AF_UNIX, kSocketType, 0));
    if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno == ECONNREFUSED)
      unlink(address.sun_path);
  }

  void start(const std::string& what) {
    wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.is_open() || listen(listener_.get(), SOMAXCONN) != 0) fail(what);
    // From here on, the thread allocates memory only for requests and answers.
    connections_.reserve(limits_.num_connections);
    polled_.reserve(limits_.num_connections + 2);
    thread_ = std::thread([this] { run(); });
  }
  void wake() const { eventfd_write(wake_.get(), 1); }

  void run() noexcept {
    while (!is_ending_) {
      wait();
      eventfd_t ignored;
      if (polled_[0].revents != 0) eventfd_read(wake_.get(), &ignored);
      const Clock::time_point now = Clock::now();
      for (size_t i = 0; i < connections_.size() && !is_ending_; ++i) {
        try {
          serve(connections_[i], polled_[i + 2].revents, now);
        } catch (...) {  // out of memory, or a defect of the protocol
          connections_[i].state = State::kClosed;
        }
      }
      std::erase_if(connections_, [](const Connection& one) { return one.state == State::kClosed; });
      if (polled_[1].revents != 0) accept_all(now);
    }
    connections_.clear();
  }

  // Waits until a connection is ready, a message is published or the next deadline has passed.
  void wait() {
    const bool is_paused = Clock::now() < paused_until_;
    std::optional<Clock::time_point> end;
    const auto until = [&](Clock::time_point time) { end = end ? std::min(*end, time) : time; };
    if (is_paused) until(paused_until_);
    polled_.assign({{wake_.get(), POLLIN, 0}, {is_paused ? -1 : listener_.get(), POLLIN, 0}});
    awaits_message_ = false;
    const uint64_t num_messages = this->num_messages();
    for (const Connection& one : connections_) {
      const bool is_idle = one.state == State::kFollows && !one.has_unsent();
      const bool writes = one.state != State::kReads && one.has_unsent();
      polled_.push_back({one.file.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0});
      until(is_idle && one.seen != num_messages ? one.next : one.deadline);
      if (is_idle && one.seen == num_messages) awaits_message_ = true;
    }
    // A message that was published in between did not wake this thread.
    if (awaits_message_ && this->num_messages() != num_messages) return;
    int timeout = -1;
    if (end) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    }
    if (poll(polled_.data(), polled_.size(), timeout) < 0)
      for (pollfd& one : polled_) one.revents = 0;
  }
  uint64_t num_messages() {
    const std::lock_guard lock(mutex_);
    return num_messages_;
  }

  void accept_all(Clock::time_point now) {
    for (size_t i = 0; i < 2 * limits_.num_connections; ++i) {
      Descriptor file(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!file.is_open()) {
        // Without this pause the listener would stay ready, and the thread busy, until a descriptor is free.
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
          paused_until_ = now + kPause;
        return;
      }
      if (connections_.size() < limits_.num_connections && is_trusted(file.get()))
        connections_.push_back({std::move(file), now + limits_.request_time});
    }
  }
  bool is_trusted(int file) const {
    if (path_.empty()) return true;
    ucred peer{};
    socklen_t size = sizeof peer;
    return getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == geteuid() || peer.uid == 0);
  }

  void serve(Connection& one, short events, Clock::time_point now) {
    if (one.state == State::kReads && events != 0) read_request(one);
    if (one.state == State::kFollows && !one.has_unsent()) follow(one, events, now);
    if (one.state == State::kWrites || one.state == State::kFollows) write(one);
    if (one.state == State::kEnds && events != 0) forget(one);
    if (now >= one.deadline) one.state = State::kClosed;
  }

  void read_request(Connection& one) {
    char some[2048];
    const size_t room = std::min(sizeof some, limits_.request_bytes - one.received.size());
    const ssize_t got = recv(one.file.get(), some, room, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      one.state = State::kClosed;
      return;
    }
    one.received.append(some, static_cast<size_t>(got));
    const size_t size = std::min(protocol_.request_size(one.received), one.received.size());
    if (size == 0 && one.received.size() < limits_.request_bytes) return;
    ListenerAnswer answer;
    if (size == 0)
      answer.bytes = protocol_.too_long;
    else
      answer =
          protocol_.answer(std::string_view(one.received).substr(0, size), num_following() < limits_.num_followers);
    one.received = {};
    one.follows = answer.follows;
    one.state = State::kWrites;
    send_next(one, std::move(answer.bytes));
  }
  size_t num_following() const {
    return static_cast<size_t>(std::ranges::count_if(connections_, &Connection::follows));
  }

  // Reads the clock again, since an answer may have taken a long time.
  void send_next(Connection& one, std::string bytes) const {
    one.unsent = std::move(bytes);
    one.num_sent = 0;
    one.deadline = Clock::now() + limits_.answer_time +
                   std::chrono::seconds(one.unsent.size() / std::max<size_t>(limits_.least_bytes_per_second, 1));
  }

  void write(Connection& one) const {
    while (one.has_unsent()) {
      const ssize_t sent = send(one.file.get(), one.unsent.data() + one.num_sent, one.unsent.size() - one.num_sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent <= 0) {
        one.state = State::kClosed;
        return;
      }
      one.num_sent += static_cast<size_t>(sent);
    }
    if (one.unsent.empty() && one.state == State::kFollows) return;
    one.unsent = {};
    one.num_sent = 0;
    if (one.follows) {
      one.deadline = Clock::now() + std::max(limits_.heartbeat_interval, limits_.follower_interval);
      one.state = State::kFollows;
      return;
    }
    // A connection that is closed with bytes left to read is reset, and the answer may be lost.
    shutdown(one.file.get(), SHUT_WR);
    one.deadline = Clock::now() + limits_.request_time;
    one.state = State::kEnds;
  }

  void follow(Connection& one, short events, Clock::time_point now) {
    if (events != 0) forget(one);
    if (one.state == State::kClosed || now < one.next) return;
    std::string message;
    {
      const std::lock_guard lock(mutex_);
      if (one.seen != num_messages_) message = message_;
      one.seen = num_messages_;
    }
    if (message.empty() && now < one.deadline) return;
    send_next(one, message.empty() ? protocol_.heartbeat : std::move(message));
    one.next = now + limits_.follower_interval;
  }

  static void forget(Connection& one) {
    char some[2048];
    const ssize_t got = recv(one.file.get(), some, sizeof some, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) one.num_forgotten += static_cast<size_t>(got);
    if (got <= 0 || one.num_forgotten > kMaxForgottenBytes) one.state = State::kClosed;
  }

  const ListenerProtocol protocol_;
  const ListenerLimits limits_;
  Descriptor listener_, wake_;
  uint16_t port_ = 0;
  std::string path_;  // of a Unix socket
  std::vector<Connection> connections_;
  std::vector<pollfd> polled_;  // wake_, listener_, connections_
  Clock::time_point paused_until_;
  std::mutex mutex_;
  std::string message_;  // the newest one
  uint64_t num_messages_ = 0;
  std::atomic<bool> is_ending_ = false, awaits_message_ = false;
  std::thread thread_;
};

CHASSIS_SDK_END
