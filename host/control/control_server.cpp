// The connections, which only the thread of the socket touches. ControlQueue leads to the threads of the run.
#include "host/control/control_server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/base/thread.hpp"
#include "host/control/control_queue.hpp"
#include "host/control/control_reply.hpp"
#include "host/control/control_socket.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kAcceptPause = 100ms;  // after a connection that could not be accepted
constexpr auto kLingerTime = 2s;      // for a refused client to read why
constexpr size_t kReadBytes = 64 << 10;

}  // namespace

struct ControlServer::Impl {
  struct Client {
    File socket;
    uint64_t number = 0;
    int64_t pid = -1;
    Clock::time_point deadline;
    std::string received = {}, unsent = {};
    bool has_ended_input = false;
    bool is_refused = false;  // what it sends is not read as requests any more
    bool is_lost = false;
  };

  Impl(const std::string& run_directory, int64_t generation, ControlLimits limits)
      : limits(limits), directory(File::open_directory(run_directory)), queue(generation) {
    const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
    const std::string fallback = fmt::format("/tmp/chassis-{}", ::geteuid());
    listener = listen_for_control(control_folder(runtime ? runtime : "", fallback), directory);
    try {
      const ControlAddress address{.host = host_name(), .pid = ::getpid(), .socket = listener.path};
      address_text = control_address_text(address);
      write_file_atomic(run_directory + "/" + kControlFileName, address_text);
      thread = Thread("control socket", [this] { serve(); });
    } catch (...) {
      remove_files();
      throw;
    }
  }
  ~Impl() {
    remove_files();
    queue.end();
    thread.join();
  }

  // Leaves a control.json that another run has written in the meantime.
  void remove_files() noexcept {
    ::unlink(listener.path.c_str());
    try {
      const File file = File::open_read_at(directory, kControlFileName);
      std::string text(file.size() == address_text.size() ? address_text.size() : 0, '\0');
      file.pread_exact(text.data(), text.size(), 0);
      if (text == address_text) ::unlinkat(directory.descriptor(), kControlFileName, 0);
    } catch (...) {  // it is not there any more
    }
  }

  void serve() {
    while (!queue.is_ending()) {
      try {
        serve_once();
      } catch (const std::bad_alloc&) {  // the training thread reports it
        std::this_thread::sleep_for(100ms);
      } catch (...) {
        counted_warning("control socket failed", current_error().message() + "; the run goes on without it");
        clients.clear();
        listener.socket = File();
        return;
      }
    }
    try {
      say_goodbye();
    } catch (...) {  // out of memory: the connections are closed
    }
    clients.clear();
  }

  void serve_once() {
    const auto now = Clock::now();
    const bool accepts = now >= accepts_from;
    std::vector<pollfd> polled = {{queue.wakes().descriptor(), POLLIN, 0},
                                  {accepts ? listener.socket.descriptor() : -1, POLLIN, 0}};
    for (const Client& client : clients)
      polled.push_back(
          {client.socket.descriptor(),
           static_cast<short>((client.has_ended_input ? 0 : POLLIN) | (client.unsent.empty() ? 0 : POLLOUT)), 0});
    if (::poll(polled.data(), polled.size(), timeout_ms()) < 0) {
      if (errno != EINTR) throw internal_error(std::string("poll: ") + std::strerror(errno));
      return;
    }
    queue.forget_wakes();
    deliver(queue.take_lines());
    for (size_t i = 0; i < clients.size(); ++i) {
      const short events = polled[i + 2].revents;
      if (events & POLLIN) read(clients[i]);
      if (events & POLLOUT) flush(clients[i]);
      // With POLLHUP the client has closed both directions, but what it sent may still be unread.
      if ((events & (POLLERR | POLLNVAL)) || ((events & POLLHUP) && clients[i].has_ended_input))
        clients[i].is_lost = true;
    }
    for (Client& client : clients) expire(client);
    std::erase_if(clients, [&](const Client& client) {
      const bool is_done = client.has_ended_input && client.unsent.empty() && !queue.awaits(client.number);
      return client.is_lost || is_done;
    });
    if (polled[1].revents != 0) accept_one();
  }

  bool has_deadline(const Client& client) const {
    return client.is_refused || !client.received.empty() || !queue.awaits(client.number);
  }

  int timeout_ms() const {
    Clock::time_point next = Clock::time_point::max();
    if (Clock::now() < accepts_from) next = accepts_from;
    for (const Client& client : clients)
      if (has_deadline(client)) next = std::min(next, client.deadline);
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
  }

  void accept_one() {
    File socket = File::adopt(::accept4(listener.socket.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK),
                              "control client");
    if (!socket.is_open()) {
      // Without a pause the listener would stay ready, and the thread busy, until a descriptor is free.
      if (errno != EAGAIN && errno != EINTR) accepts_from = Clock::now() + kAcceptPause;
      return;
    }
    const ControlPeer peer = control_peer(socket);
    if (peer.uid != static_cast<int64_t>(::geteuid()) && peer.uid != 0) {
      counted_warning("control socket: connections of other users",
                      fmt::format("control socket: process {} of user {} was refused; this run is user {}'s", peer.pid,
                                  peer.uid, ::geteuid()));
      return;
    }
    Client client{.socket = std::move(socket),
                  .number = ++num_clients_so_far,
                  .pid = peer.pid,
                  .deadline = Clock::now() + limits.line_time};
    if (clients.size() >= limits.num_clients) {
      send(client,
           refused_reply("", fmt::format("{} clients are connected already", clients.size()), queue.generation()));
      return;
    }
    clients.push_back(std::move(client));
  }

  void read(Client& client) {
    std::array<char, kReadBytes> bytes;
    const ssize_t num_read = ::recv(client.socket.descriptor(), bytes.data(), bytes.size(), 0);
    if (num_read < 0) {
      if (errno != EAGAIN && errno != EINTR) client.is_lost = true;
      return;
    }
    if (num_read == 0) {
      client.has_ended_input = true;
      if (!client.received.empty()) refuse(client, "the connection ended within a line");
      return;
    }
    if (client.is_refused) return;
    if (client.received.empty()) client.deadline = Clock::now() + limits.line_time;
    const size_t searched = client.received.size();
    client.received.append(bytes.data(), static_cast<size_t>(num_read));
    size_t begin = 0;
    for (size_t end; !client.is_refused && !client.is_lost &&
                     (end = client.received.find('\n', std::max(begin, searched))) != std::string::npos;
         begin = end + 1)
      on_line(client, std::string_view(client.received).substr(begin, end - begin));
    client.received.erase(0, begin);
    if (client.received.size() > kMaxControlLineBytes)
      refuse(client, fmt::format("request: the line is too long, maximum {} bytes", kMaxControlLineBytes));
  }

  void on_line(Client& client, std::string_view line) {
    client.deadline = Clock::now() + limits.line_time;
    std::optional<ControlRequest> request;
    try {
      request = parse_control_request(line);
    } catch (const Error& error) {
      return send(client, refused_reply("", error.what(), queue.generation()));
    }
    const ControlReply reply = queue.answer(*request, client.number);
    if (request->verb != ControlVerb::kStatus)
      log::info("control: {} '{}' of process {}: {}", control_verb_name(request->verb), request->id, client.pid,
                reply.kind == ControlReply::Kind::kAccepted ? "accepted" : reply.name + ": " + reply.text);
    send(client, reply);
  }

  // Answers a client that does not send lines. It is closed a moment later, since a connection that is closed with
  // bytes left to read is reset.
  void refuse(Client& client, const std::string& text) {
    client.received = {};
    send(client, refused_reply("", text, queue.generation()));
    if (client.is_refused) return;
    client.is_refused = true;
    client.deadline = Clock::now() + std::min<Clock::duration>(kLingerTime, limits.line_time);
    if (client.unsent.empty()) ::shutdown(client.socket.descriptor(), SHUT_WR);
  }

  void expire(Client& client) {
    if (client.deadline > Clock::now() || !has_deadline(client)) return;
    if (client.is_refused)
      client.is_lost = true;
    else
      refuse(client, fmt::format("no complete line within {:.0f} ms",
                                 std::chrono::duration<double, std::milli>(limits.line_time).count()));
  }

  void deliver(const ControlQueue::Lines& lines) {
    for (const auto& [number, line] : lines)
      for (Client& client : clients)
        if (client.number == number) {
          client.deadline = Clock::now() + limits.line_time;
          send_line(client, line);
        }
  }

  void send(Client& client, const ControlReply& reply) { send_line(client, control_line(reply)); }
  void send_line(Client& client, const std::string& line) {
    client.unsent += line;
    flush(client);
    if (client.unsent.size() <= limits.unsent_bytes || client.is_lost) return;
    counted_warning("control socket: slow clients",
                    fmt::format("control socket: process {} does not read its replies; it was dropped", client.pid));
    client.is_lost = true;
  }
  void flush(Client& client) {
    while (!client.unsent.empty() && !client.is_lost) {
      const ssize_t sent =
          ::send(client.socket.descriptor(), client.unsent.data(), client.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0)
        client.is_lost = true;
      else
        client.unsent.erase(0, static_cast<size_t>(sent));
    }
    if (client.is_refused && !client.is_lost) ::shutdown(client.socket.descriptor(), SHUT_WR);
  }

  // Hands over the last replies, and tells all clients that the run has ended.
  void say_goodbye() {
    deliver(queue.take_lines());
    for (Client& client : clients) {
      const std::string id = queue.awaited_id(client.number);
      send(client, {.id = id,
                    .ok = false,
                    .name = kRunEndedOutcome,
                    .text = id.empty() ? "the run has ended" : "the run ended before the request did",
                    .generation = queue.generation()});
    }
    for (const auto end = Clock::now() + limits.end_time;;) {
      std::erase_if(clients, [](const Client& client) { return client.is_lost || client.unsent.empty(); });
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      if (clients.empty() || left <= 0ms) return;
      std::vector<pollfd> polled;
      for (const Client& client : clients) polled.push_back({client.socket.descriptor(), POLLOUT, 0});
      if (::poll(polled.data(), polled.size(), static_cast<int>(left.count())) < 0 && errno != EINTR) return;
      for (Client& client : clients) flush(client);
    }
  }

  const ControlLimits limits;
  const File directory;
  ControlQueue queue;
  ControlListener listener;
  std::string address_text;  // of control.json
  std::vector<Client> clients;
  uint64_t num_clients_so_far = 0;
  Clock::time_point accepts_from = Clock::time_point::min();
  Thread thread;
};

ControlServer::ControlServer(const std::string& run_directory, int64_t generation, ControlLimits limits) {
  try {
    impl_ = std::make_unique<Impl>(run_directory, generation, limits);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    reason_ = current_error().what();
    counted_warning("no control socket", "`chassis ctl` cannot talk to this run: " + reason_);
  }
}

ControlServer::~ControlServer() = default;

std::optional<ControlRequest> ControlServer::take() { return impl_ ? impl_->queue.take() : std::nullopt; }

bool ControlServer::cancel_requested() const { return impl_ && impl_->queue.cancel_requested(); }

void ControlServer::phase(const std::string& name, const Json& facts) {
  if (impl_) impl_->queue.phase(name, facts);
}

void ControlServer::finish(bool ok, const std::string& outcome, const std::string& text, const Json& facts) {
  if (impl_) impl_->queue.finish(ok, outcome, text, facts);
}

void ControlServer::set_status(const Json& status) {
  if (impl_) impl_->queue.set_status(status);
}

void ControlServer::set_generation(int64_t generation) {
  if (impl_) impl_->queue.set_generation(generation);
}

}  // namespace chassis
