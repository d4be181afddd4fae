#include "server.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

namespace prometheus {
namespace {

constexpr int kPatienceMs = 2000;  // with one client
constexpr size_t kMaxRequestBytes = 8192;

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

bool is_ready(int file, short events) {
  pollfd poll_one{file, events, 0};
  return poll(&poll_one, 1, kPatienceMs) == 1;
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

void Server::answer(int connection) const {
  std::string request;
  char some[1024];
  while (request.find("\r\n\r\n") == std::string::npos) {
    if (request.size() > kMaxRequestBytes || !is_ready(connection, POLLIN)) return;
    const ssize_t got = recv(connection, some, sizeof some, 0);
    if (got <= 0) return;
    request.append(some, static_cast<size_t>(got));
  }
  const bool is_get = request.starts_with("GET ");
  const std::string_view path =
      is_get ? std::string_view(request).substr(4, request.find_first_of(" ?", 4) - 4) : std::string_view();
  std::string status = "200 OK", body;
  if (!is_get)
    status = "405 Method Not Allowed\r\nAllow: GET";
  else if (path != path_)
    status = "404 Not Found", body = "the metrics are at " + path_ + "\n";
  else
    body = body_();
  std::string all = "HTTP/1.1 " + status + "\r\nContent-Type: " + content_type_ +
                    "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
  for (std::string_view rest = all; !rest.empty() && is_ready(connection, POLLOUT);) {
    const ssize_t sent = send(connection, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    rest.remove_prefix(static_cast<size_t>(sent));
  }
}

}  // namespace prometheus
