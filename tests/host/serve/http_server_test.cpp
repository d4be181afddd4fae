// Clients that are slow, large, many or broken: each bound holds, and the server goes on.
#include "host/serve/http_server.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "host/base/error.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

HttpLimits short_limits() {
  HttpLimits limits;
  limits.num_connections = 4;
  limits.unsent_bytes = 64 << 20;
  limits.request_time = 300ms;
  limits.write_time = 300ms;
  limits.linger_time = 300ms;
  return limits;
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() { server_.start(); }

  std::string answer(const std::string& request, const std::string& end = "") {
    return fake::answer_of(server_.port(), request, end);
  }
  static std::string post(const std::string& body, const std::string& fields = "") {
    return "POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n" + fields + "Content-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body;
  }
  // The reply to the last request of /keep.
  std::shared_ptr<HttpReply> kept() {
    for (int i = 0; i < 500; ++i, std::this_thread::sleep_for(10ms)) {
      const std::lock_guard lock(mutex_);
      if (kept_) return std::exchange(kept_, nullptr);
    }
    return nullptr;
  }
  static bool closes(const HttpReply& reply) {
    for (int i = 0; i < 500 && reply.is_open(); ++i) std::this_thread::sleep_for(10ms);
    return !reply.is_open();
  }
  void expect_to_go_on() { EXPECT_HAS(answer(post("on")), "200 OK"); }

  HttpHandler handler() {
    HttpHandler made;
    made.on_head = [](const HttpHead& head) -> std::optional<HttpResponse> {
      if (head.method == "GET") return HttpResponse{200, "{\"path\":\"" + head.path + "\"}"};
      return std::nullopt;
    };
    made.on_request = [this](const HttpHead& head, const std::string& body, std::shared_ptr<HttpReply> reply) {
      if (head.path == "/throw") throw config_error("thrown");
      if (head.path == "/keep") {
        const std::lock_guard lock(mutex_);
        kept_ = std::move(reply);
      } else {
        reply->describe(" echo");
        reply->answer({200, body.size() < 100 ? body : std::to_string(body.size())});
      }
    };
    made.on_end = [this](const HttpHead& head, const HttpReply& reply, Clock::duration time) {
      const std::lock_guard lock(mutex_);
      ended_ += head.method + head.path + " " + std::to_string(reply.status()) + reply.description() +
                (reply.has_ended() ? "" : " gone") + (time < 10s ? "\n" : " late\n");
    };
    made.error_body = [](int status, const std::string& message) { return std::to_string(status) + " " + message; };
    return made;
  }

  // True once the server has reported requests so.
  bool has_reported(const std::string& lines) {
    for (int i = 0; i < 500; ++i, std::this_thread::sleep_for(10ms)) {
      const std::lock_guard lock(mutex_);
      if (ended_.find(lines) != std::string::npos) return true;
    }
    return false;
  }

  std::mutex mutex_;
  std::shared_ptr<HttpReply> kept_;
  std::string ended_;
  HttpServer server_{0, handler(), short_limits()};
};

TEST_F(HttpServerTest, ReportsEachRequestWhenItEnds) {
  answer("GET /a?b=c HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(has_reported("GET/a 200\n")) << ended_;
  answer(post("x"));
  EXPECT_TRUE(has_reported("POST/echo 200 echo\n")) << ended_;
  answer("GET /b HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_TRUE(has_reported("GET/b 403\n")) << ended_;
  answer("no request\r\n\r\n");
  EXPECT_TRUE(has_reported("\n 400\n")) << ended_;
  const int file = fake::connection_to(server_.port());
  const std::string text = "POST /keep HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nx";
  ASSERT_EQ(send(file, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  ASSERT_TRUE(kept());
  close(file);
  EXPECT_TRUE(has_reported("POST/keep 0 gone\n")) << ended_;
}

TEST_F(HttpServerTest, AnswersByTheHeadOrByTheBody) {
  const std::string head = answer("GET /a?b=c HTTP/1.1\r\nHost: localhost:80\r\n\r\n");
  EXPECT_HAS(head, "HTTP/1.1 200 OK\r\n");
  EXPECT_HAS(head, "Content-Type: application/json\r\n");
  EXPECT_TRUE(head.ends_with("\r\n\r\n{\"path\":\"/a\"}")) << head;
  EXPECT_TRUE(answer(post("hello")).ends_with("\r\n\r\nhello"));
  EXPECT_TRUE(answer(post(std::string(3'000'000, 'x'))).ends_with("3000000"));
  EXPECT_HAS(answer("POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                    "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
             "abcde");
  EXPECT_HAS(answer(post("late", "Expect: 100-continue\r\n")), "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK");
}

TEST_F(HttpServerTest, RefusesWhatIsTooLongMalformedOrForeign) {
  EXPECT_HAS(answer("GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n"), "431 ");
  EXPECT_HAS(answer(post(std::string(5 << 20, 'x'))), "413 the body of a request has at most 4194304 bytes");
  EXPECT_HAS(answer("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"), "HTTP/1.1 4");
  EXPECT_HAS(answer("nonsense\r\n\r\n"), "400 this is not an HTTP/1.1 request");
  EXPECT_HAS(answer("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\nContent-Length: 1\r\n\r\nx"),
             "501 the only transfer coding here is chunked");
  EXPECT_HAS(answer("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), "403 ");
  EXPECT_HAS(answer("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), "403 ");
  EXPECT_HAS(answer("POST /throw HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"), "500 the server failed");
  expect_to_go_on();
}

TEST_F(HttpServerTest, HalfARequestIsClosedAtItsDeadline) {
  const auto begin = Clock::now();
  EXPECT_EQ(answer("POST /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nhalf"), "");
  EXPECT_EQ(answer("GET / HT"), "");
  EXPECT_EQ(answer(""), "");
  EXPECT_LT(Clock::now() - begin, 5s);
  expect_to_go_on();
}

TEST_F(HttpServerTest, MoreConnectionsThanAllowedAreRefusedAtOnce) {
  std::vector<int> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(fake::connection_to(server_.port()));
  EXPECT_HAS(answer(""), "503 4 connections are open already");
  for (const int file : idle) close(file);
  std::this_thread::sleep_for(100ms);
  expect_to_go_on();
}

TEST_F(HttpServerTest, ThePartOfARequestGivesWayToANewOne) {
  HttpLimits limits = short_limits();
  limits.request_time = 60s;
  limits.patience = 200ms;
  HttpServer server(0, handler(), limits);
  server.start();
  std::vector<int> partial;
  const std::string part = post("abc").substr(0, post("abc").size() - 2);
  for (size_t i = 0; i < limits.num_connections; ++i) {
    partial.push_back(fake::connection_to(server.port()));
    ASSERT_EQ(send(partial.back(), part.data(), part.size(), 0), static_cast<ssize_t>(part.size()));
  }
  EXPECT_HAS(fake::answer_of(server.port(), ""), "503 4 connections are open already");
  std::this_thread::sleep_for(300ms);
  EXPECT_HAS(fake::answer_of(server.port(), post("on")), "200 OK");
  char byte = 0;
  EXPECT_EQ(recv(partial.front(), &byte, 1, 0), 0);  // the oldest one is closed
  ASSERT_EQ(send(partial.back(), "bc", 2, 0), 2);    // and the others go on
  EXPECT_EQ(recv(partial.back(), &byte, 1, 0), 1);
  for (const int file : partial) close(file);
}

TEST_F(HttpServerTest, ConnectionsThatHaveTheirAnswerLeaveRoom) {
  std::vector<int> answered;
  for (int i = 0; i < 4; ++i) {
    answered.push_back(fake::connection_to(server_.port()));
    const std::string request = post("x");
    ASSERT_EQ(send(answered.back(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char some[512];
    while (recv(answered.back(), some, sizeof some, 0) > 0) {
    }
  }
  expect_to_go_on();
  for (const int file : answered) close(file);
}

TEST_F(HttpServerTest, AStreamEndsWithItsConnection) {
  const int file = fake::connection_to(server_.port());
  const std::string request = "POST /keep HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  ASSERT_EQ(send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  const std::shared_ptr<HttpReply> reply = kept();
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->add_event("one"));
  std::this_thread::sleep_for(500ms);  // a client that waits for the next event is not slow
  EXPECT_TRUE(reply->add_event("two"));
  reply->end();
  EXPECT_FALSE(reply->add_event("three"));
  std::string text;
  char some[512];
  for (ssize_t got = 0; (got = recv(file, some, sizeof some, 0)) > 0;) text.append(some, static_cast<size_t>(got));
  close(file);
  EXPECT_HAS(text, "Content-Type: text/event-stream");
  EXPECT_TRUE(text.ends_with("\r\n\r\ndata: one\n\ndata: two\n\n")) << text;
  EXPECT_TRUE(closes(*reply));
}

TEST_F(HttpServerTest, AnErrorAfterTheFirstEventIsAnEvent) {
  std::string text;
  std::thread client([&] { text = answer("POST /keep HTTP/1.1\r\nContent-Length: 0\r\n\r\n"); });
  const std::shared_ptr<HttpReply> reply = kept();
  ASSERT_TRUE(reply);
  reply->add_event("one");
  reply->answer({500, "{\"error\":1}"});
  client.join();
  EXPECT_HAS(text, "HTTP/1.1 200 OK");
  EXPECT_TRUE(text.ends_with("data: one\n\ndata: {\"error\":1}\n\n")) << text;
}

TEST_F(HttpServerTest, AClientThatLeavesClosesItsReply) {
  const int file = fake::connection_to(server_.port());
  const std::string request = "POST /keep HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  ASSERT_EQ(send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  const std::shared_ptr<HttpReply> reply = kept();
  ASSERT_TRUE(reply && reply->is_open());
  close(file);
  EXPECT_TRUE(closes(*reply));
  EXPECT_FALSE(reply->add_event("late"));
  reply->answer({200, "late"});
  expect_to_go_on();
}

TEST_F(HttpServerTest, AClientThatReadsNothingNeitherBlocksNorFillsTheMemory) {
  const int file = fake::connection_to(server_.port());
  const std::string request = "POST /keep HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  ASSERT_EQ(send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  const std::shared_ptr<HttpReply> reply = kept();
  ASSERT_TRUE(reply);
  const auto begin = Clock::now();
  const std::string piece(10'000, 'x');
  size_t num_bytes = 0;
  while (reply->add_event(piece) && num_bytes < size_t{1} << 28) num_bytes += piece.size();
  EXPECT_LT(num_bytes, size_t{1} << 28);
  EXPECT_LT(Clock::now() - begin, 5s);
  expect_to_go_on();
  close(file);
}

TEST_F(HttpServerTest, AClientThatStopsReadingIsClosedAtItsDeadline) {
  const int file = fake::connection_to(server_.port());
  const std::string request = "POST /keep HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
  ASSERT_EQ(send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  const std::shared_ptr<HttpReply> reply = kept();
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->add_event(std::string(40 << 20, 'x')));  // more than the buffers of a connection hold
  EXPECT_TRUE(closes(*reply));
  expect_to_go_on();
  close(file);
}

TEST(HttpServerPort, IsRefusedIfItIsInUse) {
  const HttpHandler handler;
  HttpServer first(0, handler);
  first.start();
  try {
    HttpServer second(first.port(), handler);
    second.start();
    FAIL() << "two servers of one port";
  } catch (const Error& error) {
    EXPECT_HAS(error.message(), "port " + std::to_string(first.port()) + " of 127.0.0.1: Address already in use");
  }
}

TEST(HttpServerEnd, DoesNotWaitForIdleConnections) {
  HttpLimits limits;
  limits.shutdown_time = 100ms;
  auto server = std::make_unique<HttpServer>(0, HttpHandler{}, limits);
  server->start();
  const int file = fake::connection_to(server->port());
  std::this_thread::sleep_for(50ms);
  const auto begin = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - begin, 2s);
  close(file);
}

}  // namespace
}  // namespace chassis
