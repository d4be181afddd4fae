// Enough of HTTP/1.1 (RFC 9112) for a read-only page on 127.0.0.1: GET and HEAD, one request per connection, with the
// bounds of Listener. No request bodies, ranges, encodings or persistent connections.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "chassis/listener.hpp"

CHASSIS_SDK_BEGIN

struct HttpRequest {
  std::string_view method, path, query;  // as sent; the query without its '?'
  std::string_view host;                 // of the last Host field
  size_t num_hosts = 0;
};

inline bool is_same_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

// Parses a request up to its empty line; the results are views of `head`. Returns nothing if it is malformed.
inline std::optional<HttpRequest> parse_http_request(std::string_view head) {
  const auto next_line = [&]() -> std::optional<std::string_view> {
    const size_t end = head.find("\r\n");
    if (end == head.npos) return std::nullopt;
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    return line;
  };
  const auto is_token = [](std::string_view text) {
    for (const char c : text)
      if (c <= ' ' || c == '\x7f' || c == ':') return false;
    return !text.empty();
  };
  HttpRequest request;
  const std::optional<std::string_view> first = next_line();
  if (!first) return std::nullopt;
  const size_t method_end = first->find(' '), target_end = first->rfind(' ');
  if (method_end == first->npos || target_end == method_end) return std::nullopt;
  request.method = first->substr(0, method_end);
  const std::string_view version = first->substr(target_end + 1);
  std::string_view target = first->substr(method_end + 1, target_end - method_end - 1);
  if (!is_token(request.method) || !target.starts_with('/') || (version != "HTTP/1.1" && version != "HTTP/1.0"))
    return std::nullopt;
  for (const char c : target)
    if (static_cast<unsigned char>(c) <= ' ' || c == '\x7f') return std::nullopt;
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != target.npos) request.query = target.substr(question + 1);
  for (;;) {
    const std::optional<std::string_view> line = next_line();
    if (!line) return std::nullopt;
    if (line->empty()) return request;
    const size_t colon = line->find(':');
    // The continuation line of a folded field begins with a space.
    if (colon == line->npos || !is_token(line->substr(0, colon))) return std::nullopt;
    if (!is_same_ignoring_case(line->substr(0, colon), "host")) continue;
    std::string_view value = line->substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
    request.host = value;
    ++request.num_hosts;
  }
}

// The value of `name` in a query such as "since=3&x=1"; escapes stay as they are.
inline std::optional<std::string_view> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    if (pair.substr(0, pair.find('=')) != name) continue;
    const size_t equals = pair.find('=');
    return equals == pair.npos ? std::string_view() : pair.substr(equals + 1);
  }
  return std::nullopt;
}

// Another site must not read this page through a name of its own that resolves to 127.0.0.1. Browsers send that name.
inline bool has_foreign_host(const HttpRequest& request) {
  if (request.num_hosts == 0) return false;  // not a browser
  const size_t colon = request.host.find(':');
  const std::string_view name = request.host.substr(0, colon);
  const bool has_port =
      colon == request.host.npos || request.host.find_first_not_of("0123456789", colon + 1) == request.host.npos;
  return request.num_hosts > 1 || !has_port || (name != "127.0.0.1" && !is_same_ignoring_case(name, "localhost"));
}

// 128 random bits as 32 hexadecimal digits.
inline std::string new_secret() {
  unsigned char bytes[16];
  for (size_t done = 0; done < sizeof bytes;) {
    const ssize_t got = getrandom(bytes + done, sizeof bytes - done, 0);
    if (got < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "random numbers");
    if (got > 0) done += static_cast<size_t>(got);
  }
  std::string text;
  for (const unsigned char byte : bytes) text += "0123456789abcdef"[byte >> 4], text += "0123456789abcdef"[byte & 15];
  return text;
}

// Takes a time that depends on the lengths alone.
inline bool is_same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char differences = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differences = static_cast<unsigned char>(differences | static_cast<unsigned char>(a[i] ^ b[i]));
  return differences == 0;
}

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  bool follows = false;  // the answer is a stream of events that begins with `body`
};

inline std::string_view http_status_text(int status) {
  switch (status) {
    case 200:
      return "200 OK";
    case 400:
      return "400 Bad Request";
    case 403:
      return "403 Forbidden";
    case 404:
      return "404 Not Found";
    case 405:
      return "405 Method Not Allowed\r\nAllow: GET, HEAD";
    case 431:
      return "431 Request Header Fields Too Large";
    case 503:
      return "503 Service Unavailable";
    default:
      return "500 Internal Server Error";
  }
}

inline std::string http_answer_text(const HttpAnswer& answer, bool has_body = true) {
  std::string text = "HTTP/1.1 ";
  text += http_status_text(answer.status);
  text += "\r\nContent-Type: " + answer.type;
  if (!answer.follows) text += "\r\nContent-Length: " + std::to_string(answer.body.size());
  text +=
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer"
      "\r\nConnection: close\r\n\r\n";
  if (has_body) text += answer.body;
  return text;
}

// Answers GET and HEAD requests that use a name of this machine. An exception becomes status 503.
using HttpPage = std::function<HttpAnswer(const HttpRequest& request, bool may_follow)>;

inline ListenerAnswer answer_http(std::string_view head, bool may_follow, const HttpPage& page) {
  const std::optional<HttpRequest> request = parse_http_request(head);
  HttpAnswer answer;
  const bool is_head = request && request->method == "HEAD";
  if (!request)
    answer = {.status = 400, .body = "this is not an HTTP/1.1 request\n"};
  else if (has_foreign_host(*request))
    answer = {.status = 403, .body = "this server's names are 127.0.0.1 and localhost\n"};
  else if (request->method != "GET" && !is_head)
    answer = {.status = 405, .body = "this page can only be read\n"};
  else
    try {
      answer = page(*request, may_follow && !is_head);
    } catch (const std::exception& error) {
      answer = {.status = 503, .body = std::string(error.what()) + "\n"};
    }
  return {http_answer_text(answer, !is_head), answer.follows && !is_head};
}

// The protocol of an HTTP server on 127.0.0.1, for Listener.
inline ListenerProtocol http_protocol(HttpPage page, std::string heartbeat = {}) {
  ListenerProtocol protocol;
  protocol.request_size = [](std::string_view received) {
    const size_t end = received.find("\r\n\r\n");
    return end == received.npos ? size_t{0} : end + 4;
  };
  protocol.answer = [page = std::move(page)](std::string_view request, bool may_follow) {
    return answer_http(request, may_follow, page);
  };
  protocol.too_long = http_answer_text({.status = 431, .body = "the head of a request has at most 8 KiB\n"});
  protocol.heartbeat = std::move(heartbeat);
  return protocol;
}

CHASSIS_SDK_END
