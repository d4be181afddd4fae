// A small HTTP/1.1 server on 127.0.0.1 that answers GET of one path with a text, one connection after the other. A slow
// client is left after two seconds, and at once when the server ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace prometheus {

class Server {
 public:
  // Throws std::system_error if the port cannot be had. Port 0: any free one. `body` is called on the server's thread.
  Server(uint16_t port, std::string path, std::string content_type, std::function<std::string()> body);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }

 private:
  using Clock = std::chrono::steady_clock;

  void run() const;
  void answer(int connection) const;
  // Waits for one of `events`. False at the deadline, and when the server ends.
  bool is_ready(int file, short events, Clock::time_point deadline) const;

  const std::string path_, content_type_;
  const std::function<std::string()> body_;
  int listener_ = -1, wake_ = -1;
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace prometheus
