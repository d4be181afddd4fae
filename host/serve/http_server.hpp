// An HTTP/1.1 server for 127.0.0.1, with bounds that hold against every client: connections, bytes, time. One thread
// does the network's work, and what it calls must not wait. One request per connection. Knows nothing of models.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "host/serve/http_reply.hpp"

namespace chassis {

struct HttpLimits {
  size_t num_connections = 32;  // without those that have their answer; further ones are answered 503 and closed
  size_t head_bytes = 8 << 10;
  size_t body_bytes = 4 << 20;
  size_t unsent_bytes = 1 << 20;                   // of a stream, before the client counts as too slow
  std::chrono::milliseconds request_time{10'000};  // from the connection to the end of its request
  std::chrono::milliseconds patience{1'000};       // after which an incomplete request gives way to a new connection
  std::chrono::milliseconds write_time{10'000};    // for the client to take what is sent at once
  std::chrono::milliseconds linger_time{2'000};    // from the end of the answer until the client closes
  std::chrono::milliseconds shutdown_time{500};    // for the last answers, when the server ends
};

struct HttpHead {
  std::string method, path;  // without the query
  std::string content_type, authorization;
};

// Called on the server's thread.
struct HttpHandler {
  // Answers a request by its head alone, or returns nothing if its body is needed.
  std::function<std::optional<HttpResponse>(const HttpHead& head)> on_head;
  // Answers a whole request now or later, by `reply`. What it throws is answered with status 500.
  std::function<void(const HttpHead& head, std::string body, std::shared_ptr<HttpReply> reply)> on_request;
  // The body of an error that the server finds itself.
  std::function<std::string(int status, const std::string& message)> error_body;
  // Called once the answer is sent, or its client has gone. `head` is empty if what came is no request. May be empty.
  std::function<void(const HttpHead& head, const HttpReply& reply, std::chrono::steady_clock::duration time)> on_end =
      {};
};

class HttpServer {
 public:
  // Takes the port, or any free one for port 0. Throws a config error if it is not available.
  HttpServer(uint16_t port, HttpHandler handler, HttpLimits limits = {});
  // Gives answers that have ended limits.shutdown_time to leave, and closes all connections.
  ~HttpServer();

  uint16_t port() const;
  // Accepts connections from now on.
  void start();

 private:
  class Connection;
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace chassis
