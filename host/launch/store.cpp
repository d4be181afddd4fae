// Implements the store with c10d's TCPStore. A key holds "v" and the value, or "p" and the number of parts of a value
// that is too long for one request.
#include "host/launch/store.hpp"

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#if __has_include(<torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>)  // since 2.15
#include <torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>
#else
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#endif
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/launch/address.hpp"
#include "host/launch/packed_text.hpp"

namespace chassis {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstTimeout{10000}, kReachTimeout{3000};
constexpr size_t kMaxPart = size_t{4} << 20;  // the server closes a connection that sends more than 8 MiB at once
constexpr int kMaxParts = 1 << 16;
const std::string kAbsent = "\1";  // no value begins with this

Error communication_error(std::string message) { return Error(ExitCode::kCommunication, std::move(message)); }

// During its lifetime c10d does not log. It also throws the errors that it logs with a backtrace, and the program
// reports those.
class QuietTorch {
 public:
  QuietTorch() {
    usual_level();
    if (count_++ == 0) set_level(c10::GLOG_FATAL);
  }
  ~QuietTorch() {
    if (--count_ == 0) set_level(usual_level());
  }

 private:
  static int usual_level() {
    static const int level = FLAGS_caffe2_log_level;
    return level;
  }
  static void set_level(int level) { std::atomic_ref(FLAGS_caffe2_log_level).store(level, std::memory_order_relaxed); }
  static inline std::atomic<int> count_ = 0;
};

std::string reason_of(const std::exception& e) {
  const auto* torch = dynamic_cast<const c10::Error*>(&e);
  const std::string text = torch ? torch->what_without_backtrace() : e.what();
  return text.substr(0, text.find('\n'));
}

void set_timeouts(int socket, milliseconds timeout) {
  const timeval limit{timeout.count() / 1000, (timeout.count() % 1000) * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// c10d waits for an answer without limit, unless its socket has a timeout. It gives no access to the socket, so this
// finds all connections of this process to the port.
std::vector<int> sockets_to(int port) {
  std::vector<int> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0) continue;
    if ((peer.family() == AF_INET || peer.family() == AF_INET6) && peer.port() == port) sockets.push_back(descriptor);
  }
  return sockets;
}

// Connects within the timeout; returns an errno, or 0. A signal that interrupts connect() does not end the attempt,
// which then continues in the background and must not be started again.
int connect_within(int socket, const SocketAddress& address, milliseconds timeout) {
  if (connect(socket, address.get(), address.length) == 0) return 0;
  if (errno != EINTR) return errno;
  const auto end = Clock::now() + timeout;
  pollfd wanted{socket, POLLOUT, 0};
  for (int ready = -1; ready <= 0;) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    if (left.count() <= 0) return EINPROGRESS;
    ready = poll(&wanted, 1, static_cast<int>(left.count()));
    if (ready < 0 && errno != EINTR) return errno;
  }
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Repeats a call that a signal interrupts.
template <class Call>
ssize_t uninterrupted(Call call) {
  ssize_t result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Checks whether a store answers at the address; returns the reason if not, otherwise "". Called before c10d connects,
// which would wait forever on a port of another program.
std::string why_no_store(const SocketAddress& address, milliseconds timeout) {
  const File socket = File::adopt(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  if (!socket.is_open()) return std::strerror(errno);
  set_timeouts(socket.descriptor(), timeout);
  if (const int error = connect_within(socket.descriptor(), address, timeout); error != 0)
    return error == EINPROGRESS ? "no answer" : std::strerror(error);
  using c10d::detail::QueryType;
  const uint32_t magic = c10d::detail::validationMagicNumber, nonce = static_cast<uint32_t>(getpid());
  char request[10] = {static_cast<char>(QueryType::VALIDATE), 0, 0, 0, 0, static_cast<char>(QueryType::PING)};
  std::memcpy(request + 1, &magic, sizeof magic);
  std::memcpy(request + 6, &nonce, sizeof nonce);
  const auto sent = [&] { return send(socket.descriptor(), request, sizeof request, MSG_NOSIGNAL); };
  if (uninterrupted(sent) != sizeof request) return std::strerror(errno);
  uint32_t answer = ~nonce;
  const ssize_t received =
      uninterrupted([&] { return recv(socket.descriptor(), &answer, sizeof answer, MSG_WAITALL); });
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return "it accepts connections, but does not answer";
  return received == sizeof answer && answer == nonce ? "" : "the program that answers is not a store";
}

void await_store(const std::string& address, int port, milliseconds timeout) {
  const auto end = Clock::now() + timeout;
  std::string reason;
  do {
    try {
      for (const SocketAddress& candidate : resolve(address, port)) {
        const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
        reason = why_no_store(candidate, std::clamp(left, milliseconds(100), milliseconds(2000)));
        if (reason.empty()) return;
      }
    } catch (const Error& e) {  // a machine that has just started may get its name late
      reason = e.message();
    }
    std::this_thread::sleep_for(milliseconds(50));
  } while (Clock::now() < end);
  throw communication_error(
      fmt::format("no store at {}:{} within {} s: {}", address, port, timeout.count() / 1000.0, reason))
      .hint("rank 0 or the launcher serves it: has it started, and can it be reached from here?");
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

class TcpStore : public Store {
 public:
  TcpStore(const std::string& address, int port, milliseconds timeout, const std::string& prefix)
      : name_(address + ":" + std::to_string(port)), prefix_("chassis/" + (prefix.empty() ? "" : prefix + "/")) {
    const auto start = Clock::now();
    await_store(address, port, timeout);
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.waitWorkers = false;
    const auto left = timeout - std::chrono::duration_cast<milliseconds>(Clock::now() - start);
    options.timeout = std::max(left, milliseconds(1000));
    const std::vector<int> others = sockets_to(port);
    ask([&] { store_ = c10::make_intrusive<c10d::TCPStore>(address, options); });
    sockets_ = sockets_to(port);
    std::erase_if(sockets_,
                  [&](int socket) { return std::find(others.begin(), others.end(), socket) != others.end(); });
    TcpStore::set_timeout(kFirstTimeout);
  }

  void set(const std::string& key, const std::string& value) override {
    if (value.size() <= kMaxPart) return put(key, "v" + value);
    const size_t num_parts = (value.size() + kMaxPart - 1) / kMaxPart;
    for (size_t i = 0; i < num_parts; ++i) put(part_key(key, i), "v" + value.substr(i * kMaxPart, kMaxPart));
    put(key, "p" + std::to_string(num_parts));
  }

  std::optional<std::string> find(const std::string& key) override {
    std::string held = get(key);
    if (held == kAbsent) return std::nullopt;
    if (held[0] == 'v') return held.substr(1);
    if (held[0] != 'p') return held;  // a counter
    std::string value;
    const int num_parts = number_from_store(held.substr(1), 1, kMaxParts, "the number of parts of a value");
    for (int i = 0; i < num_parts; ++i) {
      const std::string part = get(part_key(key, static_cast<size_t>(i)));
      if (part == kAbsent || part[0] != 'v') throw communication_error("the store lacks a part of '" + key + "'");
      value += part.substr(1);
    }
    return value;
  }

  bool set_once(const std::string& key, const std::string& value) override {
    CHASSIS_CHECK(value.size() <= kMaxPart, "what is set once is short");
    const auto wanted = bytes_of("v" + value);
    return ask([&] { return store_->compareSet(prefix_ + key, {}, wanted); }) == wanted;
  }

  int64_t add(const std::string& key, int64_t amount) override {
    return ask([&] { return store_->add(prefix_ + key, amount); });
  }

  void set_timeout(milliseconds timeout) override {
    timeout_ = timeout;
    for (int socket : sockets_) set_timeouts(socket, timeout);
  }

  void erase(const std::string& key) override {
    const auto erase_one = [&](const std::string& name) {
      return ask([&] { return store_->deleteKey(prefix_ + name); });
    };
    erase_one(key);
    for (size_t i = 0; erase_one(part_key(key, i)); ++i) {
    }
  }

 private:
  static std::string part_key(const std::string& key, size_t part) { return key + "/part " + std::to_string(part); }

  void put(const std::string& key, const std::string& value) {
    ask([&] {
      store_->set(prefix_ + key, bytes_of(value));
      store_->getNumKeys();  // the server does not answer set(); this answer shows that it has the value
    });
  }
  // compareSet() from absent to absent changes nothing and returns the value; c10d's get() would wait for the key.
  std::string get(const std::string& key) {
    const auto absent = bytes_of(kAbsent);
    const auto held = ask([&] { return store_->compareSet(prefix_ + key, absent, absent); });
    return {held.begin(), held.end()};
  }

  template <class Request>
  std::invoke_result_t<Request> ask(Request request) {
    const std::lock_guard lock(mutex_);
    const milliseconds limit = timeout_;
    const auto start = Clock::now();
    if (lost_) throw *lost_;  // a late answer would be taken for the answer to the next request
    try {
      QuietTorch quiet;
      return request();
    } catch (const std::exception& e) {
      const bool hangs = Clock::now() - start >= limit;
      const double seconds = std::chrono::duration<double>(limit).count();
      const std::string why =
          hangs ? fmt::format("no answer within {:.3g} s", seconds) : "the connection failed, " + reason_of(e);
      lost_.emplace("lost the store at " + name_ + ": " + why, hangs);
      lost_->hint("the process that serves it has ended or hangs: rank 0, or the launcher");
      throw *lost_;
    }
  }

  std::string name_, prefix_;
  std::mutex mutex_;
  std::vector<int> sockets_;
  std::atomic<milliseconds> timeout_ = kFirstTimeout;
  std::optional<StoreLost> lost_;
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

// Binds the socket here, since c10d would open the store of a single machine to the whole network.
File bound_socket(const SocketAddress& address) {
  File socket = File::adopt(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  const int on = 1, off = 0;
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) setsockopt(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (bind(socket.descriptor(), address.get(), address.length) == 0) return socket;
  const int failure = errno;
  Error error =
      communication_error(fmt::format("cannot serve the store on port {}: {}", address.port(), std::strerror(failure)));
  if (failure == EADDRINUSE)
    error.hint("another run, another program or a second rank 0 uses it: choose one with MASTER_PORT");
  throw error;
}

// Checks that this machine can connect to itself. c10d's server does so first, and would try for minutes.
void require_reachable(const std::string& host) {
  std::string reason;
  for (const SocketAddress& any : resolve(host, 0)) {
    try {
      const File listener = bound_socket(any);
      SocketAddress at;
      at.length = sizeof at.storage;
      getsockname(listener.descriptor(), reinterpret_cast<sockaddr*>(&at.storage), &at.length);
      const File caller = File::adopt(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
      set_timeouts(caller.descriptor(), kReachTimeout);
      if (listen(listener.descriptor(), 1) == 0 && connect(caller.descriptor(), at.get(), at.length) == 0) return;
      reason = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
    } catch (const Error& error) {
      reason = error.message();
    }
  }
  throw communication_error(fmt::format("this machine cannot reach its own address {}: {}", host, reason))
      .hint("its network interface is down, as in a new network namespace: ip link set lo up");
}

// Binds to all interfaces: IPv6 if the system has it, which accepts IPv4 too.
File bound_socket_everywhere(int port) {
  const bool has_ipv6 = File::adopt(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket").is_open();
  return bound_socket(resolve(has_ipv6 ? "::" : "0.0.0.0", port).front());
}

}  // namespace

std::unique_ptr<Store> connect_store(const std::string& address, int port, milliseconds timeout,
                                     const std::string& prefix) {
  return std::make_unique<TcpStore>(address, port, timeout, prefix);
}

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(const std::string& address, int port) : impl_(std::make_unique<Impl>()) {
  const std::string own = address.empty() ? "127.0.0.1" : address;
  require_reachable(own);
  File socket = address.empty() ? bound_socket_everywhere(port) : bound_socket(resolve(address, port).front());
  SocketAddress at;
  at.length = sizeof at.storage;
  getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&at.storage), &at.length);
  port_ = at.port();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port_);
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = kFirstTimeout;
  options.masterListenFd = fcntl(socket.descriptor(), F_DUPFD_CLOEXEC, 0);  // c10d closes the copy
  try {
    QuietTorch quiet;
    impl_->store = c10::make_intrusive<c10d::TCPStore>(own, options);
  } catch (const std::exception& e) {
    throw communication_error(fmt::format("cannot serve the store on port {}: {}", port_, reason_of(e)));
  }
}

StoreServer::~StoreServer() = default;

}  // namespace chassis
