// The answer to one HTTP request: written by any thread, sent by that of the server.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace chassis {

struct HttpResponse {
  int status = 200;
  std::string body = {};    // JSON
  std::string fields = {};  // further lines of the head, each with its line break
};

// The whole response as it is sent.
std::string http_text(const HttpResponse& response);

// [any] for all functions. None of them waits.
class HttpReply {
 public:
  // `max_unsent_bytes`: a stream whose client reads so slowly that more is unsent is closed.
  explicit HttpReply(size_t max_unsent_bytes) : max_unsent_bytes_(max_unsent_bytes) {}

  // False once the client has gone, or reads too slowly: no one will get the answer.
  bool is_open() const;
  // The whole answer. If a stream has begun, its body becomes the last event.
  void answer(const HttpResponse& response);
  // Appends an event to the stream, whose head is sent with the first one. Returns is_open().
  bool add_event(std::string_view data);
  // Ends the stream.
  void end();
  // A line of the log about the request gets this text, in addition to its path and status.
  void describe(std::string text);

  // For the server. `wake` is called, under a lock, when there is something to take.
  void open(std::function<void()> wake);
  void close();
  struct Taken {
    std::string bytes;
    bool has_ended = false;
  };
  Taken take();
  int status() const;  // 0: there is none yet
  bool has_ended() const;
  std::string description() const;

 private:
  void wake();

  const size_t max_unsent_bytes_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::string unsent_, description_;
  int status_ = 0;
  bool has_begun_ = false, has_ended_ = false, is_closed_ = false, is_awake_ = false;
};

}  // namespace chassis
