// Holds what is not sent yet, within a bound.
#include "host/serve/http_reply.hpp"

#include <fmt/format.h>

#include <utility>

namespace chassis {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

std::string head_of(int status, std::string_view type) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Connection: close\r\n",
      status, reason_of(status), type);
}

}  // namespace

std::string http_text(const HttpResponse& response) {
  return head_of(response.status, "application/json") + response.fields +
         fmt::format("Content-Length: {}\r\n\r\n", response.body.size()) + response.body;
}

bool HttpReply::is_open() const {
  const std::lock_guard lock(mutex_);
  return !is_closed_;
}

void HttpReply::answer(const HttpResponse& response) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || has_ended_) return;
  if (!has_begun_) status_ = response.status;
  unsent_ += has_begun_ ? "data: " + response.body + "\n\n" : http_text(response);
  has_begun_ = has_ended_ = true;
  wake();
}

bool HttpReply::add_event(std::string_view data) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || has_ended_) return false;
  // The end of the connection is the end of the stream.
  if (!std::exchange(has_begun_, true)) {
    status_ = 200;
    unsent_ += head_of(status_, "text/event-stream; charset=utf-8") + "\r\n";
  }
  if (unsent_.size() + data.size() > max_unsent_bytes_) {
    is_closed_ = true;
    unsent_ = {};
  } else {
    unsent_.append("data: ").append(data).append("\n\n");
  }
  wake();
  return !is_closed_;
}

void HttpReply::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  wake();
}

void HttpReply::describe(std::string text) {
  const std::lock_guard lock(mutex_);
  description_ = std::move(text);
}

int HttpReply::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

bool HttpReply::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

std::string HttpReply::description() const {
  const std::lock_guard lock(mutex_);
  return description_;
}

void HttpReply::open(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void HttpReply::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  unsent_ = {};
  wake_ = nullptr;
}

HttpReply::Taken HttpReply::take() {
  const std::lock_guard lock(mutex_);
  is_awake_ = false;
  return {std::exchange(unsent_, {}), has_ended_};
}

void HttpReply::wake() {
  if (wake_ && !std::exchange(is_awake_, true)) wake_();
}

}  // namespace chassis
