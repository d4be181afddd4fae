#include "host/control/control_client.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "host/base/error.hpp"
#include "host/base/printable.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxReplyBytes = size_t{64} << 20;

// The error for an address in control.json at which nobody listens.
Error nobody_listens(const std::string& run_directory, const ControlAddress& address, int error) {
  const bool is_alive = ::kill(static_cast<pid_t>(address.pid), 0) == 0 || errno == EPERM;
  return config_error(
             fmt::format("no run is training in '{}': process {}, which wrote control.json, {} (socket '{}': {})",
                         printable(run_directory), address.pid, is_alive ? "does not listen" : "has ended",
                         printable(address.socket), std::strerror(error)))
      .hint(is_alive ? "is the run in a container with its own /tmp? Then run this command there"
                     : "the run was killed; start it again to resume");
}

File connect_to_run(const std::string& run_directory, const ControlAddress& address,
                    std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    File socket = connected_control_socket(address.socket);
    if (socket.is_open()) return socket;
    const int error = errno;
    if (error == ECONNREFUSED || error == ENOENT) throw nobody_listens(run_directory, address, error);
    if (error == EACCES || error == EPERM)
      throw config_error(fmt::format("the run in '{}' is another user's", printable(run_directory)))
          .hint("only the user who started a run, and root, may talk to it");
    const bool is_busy = error == EAGAIN || error == EINTR;  // its queue of connections is full
    if (!is_busy || std::chrono::steady_clock::now() > deadline)
      throw Error(ExitCode::kCommunication,
                  fmt::format("cannot connect to '{}': {}", printable(address.socket), std::strerror(error)));
    std::this_thread::sleep_for(10ms);
  }
}

}  // namespace

std::string new_control_id() {
  std::random_device random;
  return fmt::format("{:08x}", random());
}

ControlClient::ControlClient(const std::string& run_directory, std::chrono::milliseconds patience)
    : address_(read_control_address(run_directory)),
      patience_(patience),
      socket_(connect_to_run(run_directory, address_, patience)) {
  const ControlPeer peer = control_peer(socket_);
  if (::geteuid() != 0 && peer.uid != static_cast<int64_t>(::geteuid()))
    throw config_error(fmt::format("the socket '{}' of '{}' is user {}'s", printable(address_.socket),
                                   printable(run_directory), peer.uid));
}

Error ControlClient::lost(const std::string& what) const {
  return Error(ExitCode::kCommunication, fmt::format("the run (process {}) {}", address_.pid, what));
}

void ControlClient::send_line(const std::string& line) {
  for (size_t begin = 0; begin < line.size();) {
    const ssize_t sent = ::send(socket_.descriptor(), line.data() + begin, line.size() - begin, MSG_NOSIGNAL);
    if (sent > 0) begin += static_cast<size_t>(sent);
    if (sent >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return;  // it refused the connection: its reply says why
    pollfd awaited{socket_.descriptor(), POLLOUT, 0};
    if (::poll(&awaited, 1, static_cast<int>(patience_.count())) == 0)
      throw lost(fmt::format("does not read the request; waited {} ms", patience_.count()));
  }
}

std::string ControlClient::next_line(bool is_first) {
  std::array<char, 64 << 10> bytes;
  for (size_t searched = 0;;) {
    if (const size_t end = received_.find('\n', searched); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    searched = received_.size();
    if (searched > kMaxReplyBytes) throw lost(fmt::format("sent a line of more than {} bytes", kMaxReplyBytes));
    pollfd awaited{socket_.descriptor(), POLLIN, 0};
    const int ready = ::poll(&awaited, 1, is_first ? static_cast<int>(patience_.count()) : -1);
    if (ready == 0) throw lost(fmt::format("does not answer; waited {} ms", patience_.count()));
    if (ready < 0) continue;  // a signal
    const ssize_t num_read = ::recv(socket_.descriptor(), bytes.data(), bytes.size(), 0);
    if (num_read < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (num_read <= 0) throw lost("closed the connection; it may have ended");
    received_.append(bytes.data(), static_cast<size_t>(num_read));
  }
}

ControlReply ControlClient::ask(const ControlRequest& request,
                                const std::function<void(const ControlReply&)>& on_reply) {
  send_line(control_line(request) + "\n");
  for (bool is_first = true;; is_first = false) {
    ControlReply reply = parse_control_reply(next_line(is_first));
    // A reply without an id is for the connection.
    if (reply.id != request.id && !reply.id.empty()) continue;
    on_reply(reply);
    if (reply.kind == ControlReply::Kind::kEnd) return reply;
  }
}

}  // namespace chassis
