// The listener under attack: too many connections, requests without an end, slow and half-closed clients; and HTTP.
#include "chassis/listener.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "chassis/http.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"

namespace {

using namespace chassis;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kLargeBytes = 8 << 20;
const std::string kGet = "GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n";

ListenerLimits short_limits() {
  ListenerLimits limits;
  limits.request_time = 600ms;
  limits.answer_time = 400ms;
  limits.least_bytes_per_second = kLargeBytes;
  limits.follower_interval = 100ms;
  limits.heartbeat_interval = 300ms;
  return limits;
}

HttpAnswer answer_of_path(const HttpRequest& request, bool may_follow) {
  if (request.path == "/small") return {.body = "small"};
  if (request.path == "/large") return {.body = std::string(kLargeBytes, 'x')};
  if (request.path == "/events" && may_follow) return {.follows = true};
  if (request.path == "/throws") throw std::runtime_error("no such file");
  return {.status = 404};
}

class ListenerTest : public testing::Test {
 protected:
  int connect() const { return fake::connection_to(listener_->port()); }
  std::string answer(const std::string& request, const std::string& end = "") const {
    return fake::answer_of(listener_->port(), request, end);
  }
  // Whether the server has closed this connection, which it does within `limit`.
  static bool is_closed(int file, std::chrono::milliseconds limit) {
    char some[4096];
    for (const auto end = Clock::now() + limit;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      pollfd one{file, POLLIN, 0};
      if (poll(&one, 1, static_cast<int>(std::max<int64_t>(left, 0))) <= 0) return false;
      if (recv(file, some, sizeof some, 0) <= 0) return true;
    }
  }
  static void allow_files(rlim_t count) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = std::min(count, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  static double cpu_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  }

  std::unique_ptr<Listener> listener_ =
      std::make_unique<Listener>(uint16_t{0}, http_protocol(answer_of_path, ": beat\n\n"), short_limits());
};

TEST_F(ListenerTest, ClosesWhatIsBeyondItsConnectionsAtOnce) {
  allow_files(4096);
  std::vector<int> clients;
  for (int i = 0; i < 1100; ++i) clients.push_back(connect());
  EXPECT_LT(clients.back(), 1300);  // the server's ends are in this process too
  // They are accepted in order, so that nothing else is to come once the last is closed.
  EXPECT_TRUE(is_closed(clients.back(), 2s));
  size_t num_open = 0;
  for (const int client : clients) num_open += is_closed(client, 0ms) ? 0 : 1;
  EXPECT_LE(num_open, short_limits().num_connections);
  for (const int client : clients) EXPECT_TRUE(is_closed(client, 2s));  // the first 32 at their deadline
  for (const int client : clients) close(client);
  EXPECT_HAS(answer(kGet), "\r\n\r\nsmall");
}

// The client can send no more than the sockets hold.
TEST_F(ListenerTest, EndsARequestWithoutAnEnd) {
  for (const std::string& start : {std::string(), std::string("GET / HTTP/1.1\r\n")}) {
    const int client = connect();
    const std::string line = start.empty() ? std::string(4096, 'x') : "a: b\r\n";
    size_t num_sent = 0;
    for (ssize_t sent = 1; num_sent < (64 << 20) && sent > 0;
         num_sent += static_cast<size_t>(std::max<ssize_t>(sent, 0)))
      sent = send(client, num_sent == 0 && !start.empty() ? start.data() : line.data(),
                  num_sent == 0 && !start.empty() ? start.size() : line.size(), MSG_NOSIGNAL);
    EXPECT_LT(num_sent, size_t{32} << 20);
    close(client);
  }
  EXPECT_HAS(answer(std::string(8192, 'x')), "HTTP/1.1 431");
  EXPECT_HAS(answer(kGet.substr(0, kGet.size() - 2) + "a: " + std::string(8192 - kGet.size() - 5, 'x') + "\r\n\r\n"),
             "HTTP/1.1 200");
}

TEST_F(ListenerTest, AnswersWhileOthersAreSlow) {
  std::vector<int> slow;
  for (int i = 0; i < 31; ++i) slow.push_back(connect());
  std::atomic<bool> is_over = false;
  std::thread drips([&] {
    for (size_t at = 0; !is_over; ++at, std::this_thread::sleep_for(20ms))
      for (const int client : slow) send(client, &kGet[at % 10], 1, MSG_NOSIGNAL);
  });
  const auto start = Clock::now();
  EXPECT_HAS(answer(kGet), "\r\n\r\nsmall");
  EXPECT_LT(Clock::now() - start, 500ms);
  for (const int client : slow) EXPECT_TRUE(is_closed(client, 2s));  // the deadline is for a whole request
  EXPECT_LT(Clock::now() - start, 2500ms);
  is_over = true;
  drips.join();
  for (const int client : slow) close(client);
}

TEST_F(ListenerTest, AnswersAClientThatSendsNoMore) {
  const int client = connect();
  const std::string request = "GET /large HTTP/1.1\r\n\r\n";
  send(client, request.data(), request.size(), 0);
  shutdown(client, SHUT_WR);
  std::string got;
  char some[65536];
  for (ssize_t size = 0; (size = recv(client, some, sizeof some, 0)) > 0;) got.append(some, static_cast<size_t>(size));
  EXPECT_EQ(got.size() - got.find("\r\n\r\n") - 4, kLargeBytes);
  close(client);
  const int silent = connect();
  shutdown(silent, SHUT_WR);
  EXPECT_TRUE(is_closed(silent, 300ms));
  close(silent);
}

TEST_F(ListenerTest, AnswersTheFirstOfSeveralRequests) {
  std::string requests;
  for (int i = 0; i < 1000; ++i) requests += kGet;
  const int client = connect();
  ASSERT_EQ(send(client, requests.data(), requests.size(), MSG_NOSIGNAL), static_cast<ssize_t>(requests.size()));
  std::string got;
  char some[4096];
  ssize_t size = 0;
  while ((size = recv(client, some, sizeof some, 0)) > 0) got.append(some, static_cast<size_t>(size));
  EXPECT_EQ(size, 0);  // not reset
  EXPECT_EQ(got.find("HTTP/1.1 200"), got.rfind("HTTP/1.1"));
  EXPECT_HAS(got, "\r\n\r\nsmall");
  close(client);
}

TEST_F(ListenerTest, LeavesAClientThatDoesNotRead) {
  const int client = connect();
  const std::string request = "GET /large HTTP/1.1\r\n\r\n";
  send(client, request.data(), request.size(), 0);
  std::this_thread::sleep_for(2s);  // its deadline passes after 1.4 s
  size_t num_got = 0;
  char some[65536];
  for (ssize_t size = 0; (size = recv(client, some, sizeof some, 0)) > 0;) num_got += static_cast<size_t>(size);
  EXPECT_LT(num_got, kLargeBytes);
  close(client);
}

TEST_F(ListenerTest, SleepsWithoutADescriptor) {
  const int client = connect();
  ASSERT_EQ(send(client, kGet.data(), kGet.size(), 0), static_cast<ssize_t>(kGet.size()));
  char first = 0;
  ASSERT_EQ(recv(client, &first, 1, 0), 1);
  allow_files(256);
  const int waiting = socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> files;
  for (int file = 0; (file = dup(0)) >= 0;) files.push_back(file);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(waiting, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(cpu_seconds() - before, 0.1);
  for (const int file : files) close(file);
  send(waiting, kGet.data(), kGet.size(), 0);
  EXPECT_EQ(recv(waiting, &first, 1, 0), 1);
  close(waiting);
  close(client);
}

TEST_F(ListenerTest, SendsTheNewestMessageAtIntervals) {
  listener_->publish("one\n");
  const int client = connect();
  const std::string request = "GET /events HTTP/1.1\r\n\r\n";
  send(client, request.data(), request.size(), 0);
  std::string got;
  char some[4096];
  const auto receive_until = [&](const char* text) {
    while (got.find(text) == std::string::npos) {
      const ssize_t size = recv(client, some, sizeof some, 0);
      ASSERT_GT(size, 0);
      got.append(some, static_cast<size_t>(size));
    }
  };
  receive_until("one\n");
  std::thread publishes([&] {
    for (int i = 0; i < 400; ++i, std::this_thread::sleep_for(1ms)) listener_->publish("many\n");
    listener_->publish("last\n");
  });
  receive_until(": beat\n\n");
  publishes.join();
  const std::string messages = got.substr(got.find("\r\n\r\n") + 4);
  EXPECT_HAS(messages, "last\n: beat\n\n");
  EXPECT_LT(messages.size(), 80u);
  close(client);
}

TEST_F(ListenerTest, AThrownErrorIsAnAnswer) {
  EXPECT_HAS(answer("GET /throws HTTP/1.1\r\n\r\n"), "HTTP/1.1 503 Service Unavailable");
  ListenerProtocol protocol;
  protocol.request_size = [](std::string_view all) { return all.size(); };
  protocol.answer = [](std::string_view request, bool) -> ListenerAnswer {
    if (request == "bad") throw std::bad_alloc();
    return {std::string(request)};
  };
  const Listener listener(uint16_t{0}, protocol);
  EXPECT_EQ(fake::answer_of(listener.port(), "bad"), "");
  EXPECT_EQ(fake::answer_of(listener.port(), "good"), "good");
}

TEST_F(ListenerTest, EndsAtOnce) {
  const int reads = connect(), follows = connect();
  const std::string request = "GET /events HTTP/1.1\r\n\r\n";
  send(follows, request.data(), request.size(), 0);
  char first = 0;
  ASSERT_EQ(recv(follows, &first, 1, 0), 1);
  const auto start = Clock::now();
  listener_.reset();
  EXPECT_LT(Clock::now() - start, 500ms);
  EXPECT_TRUE(is_closed(reads, 0ms));
  EXPECT_TRUE(is_closed(follows, 0ms));
  close(reads);
  close(follows);
}

class UnixListener : public testing::Test {
 protected:
  UnixListener() { std::filesystem::create_directories(folder_); }
  ~UnixListener() override { std::filesystem::remove_all(folder_); }
  std::string ask(const std::string& text) const {
    const int file = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, path_.size());
    EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    send(file, text.data(), text.size(), MSG_NOSIGNAL);
    std::string got(4096, '\0');
    got.resize(static_cast<size_t>(std::max<ssize_t>(recv(file, got.data(), got.size(), MSG_WAITALL), 0)));
    close(file);
    return got;
  }

  const std::string folder_ = testing::TempDir() + "listener-" + std::to_string(getpid()), path_ = folder_ + "/socket";
};

TEST_F(UnixListener, IsForItsUserAlone) {
  {
    const Listener listener(path_, http_protocol(answer_of_path));
    struct stat info {};
    ASSERT_EQ(lstat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_HAS(ask(kGet), "\r\n\r\nsmall");
    EXPECT_THROW(Listener(path_, http_protocol(answer_of_path)), std::system_error);
    EXPECT_HAS(ask(kGet), "\r\n\r\nsmall");
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixListener, ReplacesADeadSocketAndNothingElse) {
  const int dead = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, path_.size());
  ASSERT_EQ(bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(dead);
  { const Listener listener(path_, http_protocol(answer_of_path)); }
  std::ofstream(path_) << "mine";
  EXPECT_THROW(Listener(path_, http_protocol(answer_of_path)), std::system_error);
  EXPECT_EQ(std::filesystem::file_size(path_), 4u);
  EXPECT_THROW(Listener(std::string(200, 'x'), http_protocol(answer_of_path)), std::system_error);
}

TEST(Http, ParsesRequests) {
  const auto request = parse_http_request("GET /a/b?since=3&x HTTP/1.1\r\nAccept: */*\r\nHOST:\t localhost:1 \r\n\r\n");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/a/b");
  EXPECT_EQ(request->query, "since=3&x");
  EXPECT_EQ(request->host, "localhost:1");
  EXPECT_EQ(query_value(request->query, "since"), "3");
  EXPECT_EQ(query_value(request->query, "x"), "");
  EXPECT_EQ(query_value(request->query, "sinc"), std::nullopt);
  for (const char* const bad :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n", "GET  HTTP/1.1\r\n\r\n",
        "GET a HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\n\n", "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", " / HTTP/1.1\r\n\r\n", "GET /\x01 HTTP/1.1\r\n\r\n"})
    EXPECT_FALSE(parse_http_request(bad)) << bad;
}

TEST(Http, RefusesForeignNames) {
  const auto is_foreign = [](const std::string& fields) {
    return has_foreign_host(*parse_http_request("GET / HTTP/1.1\r\n" + fields + "\r\n"));
  };
  for (const char* const own : {"", "Host: localhost\r\n", "Host: LOCALHOST:80\r\n", "Host: 127.0.0.1:1\r\n"})
    EXPECT_FALSE(is_foreign(own)) << own;
  for (const char* const foreign :
       {"Host:\r\n", "Host: a.example\r\n", "Host: localhost.a.example\r\n", "Host: 127.0.0.1:80@a.example\r\n",
        "Host: localhost\r\nHost: localhost\r\n", "Host: [::1]\r\n", "Host: localhost:8a\r\n"})
    EXPECT_TRUE(is_foreign(foreign)) << foreign;
}

TEST(Http, ComparesSecrets) {
  const std::string one = new_secret(), other = new_secret();
  EXPECT_EQ(one.size(), 32u);
  EXPECT_NE(one, other);
  EXPECT_TRUE(is_same_secret(one, one));
  EXPECT_FALSE(is_same_secret(one, other));
  EXPECT_FALSE(is_same_secret(one, one.substr(1)));
  EXPECT_FALSE(is_same_secret("", one));
}

TEST(Http, AnswersHeadWithoutABody) {
  const std::string answer = answer_http("HEAD /small HTTP/1.1\r\n\r\n", true, answer_of_path).bytes;
  EXPECT_HAS(answer, "Content-Length: 5\r\n");
  EXPECT_TRUE(answer.ends_with("\r\n\r\n"));
  EXPECT_FALSE(answer_http("HEAD /events HTTP/1.1\r\n\r\n", true, answer_of_path).follows);
}

}  // namespace
