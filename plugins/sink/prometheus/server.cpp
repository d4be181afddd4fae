#include "server.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace prometheus {
namespace {

constexpr std::chrono::seconds kPatience{2};  // with one client
constexpr size_t kMaxRequestBytes = 8192;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

bool is_same(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, {}, [](unsigned char c) { return std::tolower(c); }, [](unsigned char c) { return std::tolower(c); });
}

// A page of another site must not read the metrics under a name that leads to 127.0.0.1. Browsers send one Host.
bool has_foreign_host(std::string_view request) {
  constexpr std::string_view kHost = "\r\nhost:";
  for (size_t at = 0; at + kHost.size() <= request.size(); ++at) {
    if (!is_same(request.substr(at, kHost.size()), kHost)) continue;
    std::string_view name = request.substr(at + kHost.size());
    name = name.substr(0, name.find("\r\n"));
    name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
    name = name.substr(0, name.find_first_of(": \t"));
    if (name != "127.0.0.1" && !is_same(name, "localhost")) return true;
  }
  return false;
}

}  // namespace

Server::Server(uint16_t port, std::string path, std::string content_type, std::function<std::string()> body)
    : path_(std::move(path)), content_type_(std::move(content_type)), body_(std::move(body)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener_ < 0) fail("socket");
  const int yes = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(listener_, 8) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    close(listener_);
    errno = error;
    fail("port " + std::to_string(port) + " of 127.0.0.1");
  }
  port_ = ntohs(address.sin_port);
  wake_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { run(); });
}

Server::~Server() {
  eventfd_write(wake_, 1);
  thread_.join();
  close(listener_);
  close(wake_);
}

void Server::run() const {
  for (;;) {
    pollfd both[] = {{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (poll(both, 2, -1) < 0 && errno != EINTR) return;
    if (both[1].revents != 0) return;
    if (both[0].revents == 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    answer(connection);
    close(connection);
  }
}

bool Server::is_ready(int file, short events, Clock::time_point deadline) const {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd both[] = {{file, events, 0}, {wake_, POLLIN, 0}};
    const int num_ready = left <= 0 ? 0 : poll(both, 2, static_cast<int>(left));
    if (num_ready >= 0 || errno != EINTR) return num_ready > 0 && both[1].revents == 0;
  }
}

void Server::answer(int connection) const {
  const auto deadline = Clock::now() + kPatience;
  std::string request;
  char some[1024];
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() > kMaxRequestBytes || !is_ready(connection, POLLIN, deadline)) return;
    const ssize_t got = recv(connection, some, sizeof some, 0);
    if (got <= 0) return;
    request.append(some, static_cast<size_t>(got));
  }
  const bool is_get = request.starts_with("GET ");
  const std::string_view path =
      is_get ? std::string_view(request).substr(4, request.find_first_of(" ?", 4) - 4) : std::string_view();
  std::string status = "200 OK", body;
  if (has_foreign_host(request))
    status = "403 Forbidden", body = "this server's names are 127.0.0.1 and localhost\n";
  else if (!is_get)
    status = "405 Method Not Allowed\r\nAllow: GET";
  else if (path != path_)
    status = "404 Not Found", body = "the metrics are at " + path_ + "\n";
  else
    body = body_();
  std::string all = "HTTP/1.1 " + status + "\r\nContent-Type: " + content_type_ +
                    "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
  for (std::string_view rest = all; !rest.empty() && is_ready(connection, POLLOUT, deadline);) {
    const ssize_t sent = send(connection, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) continue;
    if (sent <= 0) return;
    rest.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace prometheus
