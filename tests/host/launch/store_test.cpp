#include "host/launch/store.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/file.hpp"
#include "host/launch/rank_failure.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kCommunication);
    return e.what();
  }
  return "no error";
}

// Listens on a port and answers nothing, unless answer_once() is called.
class SilentServer {
 public:
  SilentServer() : socket_(File::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(socket_.descriptor(), 8), 0);
    getsockname(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  void answer_once(const std::string& text) {
    const File connection = File::adopt(accept(socket_.descriptor(), nullptr, nullptr), "connection");
    char request[10];
    EXPECT_GT(recv(connection.descriptor(), request, sizeof request, 0), 0);
    EXPECT_EQ(send(connection.descriptor(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }

 private:
  File socket_;
  int port_ = 0;
};

TEST(Store, KeepsKeysForAllClients) {
  StoreServer server("127.0.0.1", 0);
  auto a = connect_store("127.0.0.1", server.port(), 10s), b = connect_store("localhost", server.port(), 10s);
  EXPECT_EQ(a->find("key"), std::nullopt);
  a->set("key", "value");
  EXPECT_EQ(b->find("key"), std::optional<std::string>("value"));
  b->set("key", "");
  EXPECT_EQ(a->find("key"), std::optional<std::string>(""));
  const std::string bytes("\0\1v\xff p3", 7);
  b->set(bytes, bytes);
  EXPECT_EQ(a->find(bytes), std::optional(bytes));
  a->erase("key");
  EXPECT_EQ(b->find("key"), std::nullopt);
  a->erase("key");
}

TEST(Store, AValueIsSeenByOthersAtOnce) {
  StoreServer server("127.0.0.1", 0);
  auto a = connect_store("127.0.0.1", server.port(), 10s), b = connect_store("127.0.0.1", server.port(), 10s);
  for (int i = 0; i < 2000; ++i) {
    a->set("key", std::to_string(i));
    ASSERT_EQ(b->find("key"), std::optional(std::to_string(i)));
  }
}

TEST(Store, CountsFromZero) {
  StoreServer server("127.0.0.1", 0);
  auto a = connect_store("127.0.0.1", server.port(), 10s), b = connect_store("127.0.0.1", server.port(), 10s);
  EXPECT_EQ(a->add("n", 0), 0);
  EXPECT_EQ(a->add("n", 3), 3);
  EXPECT_EQ(b->add("n", -5), -2);
  EXPECT_EQ(a->find("n"), std::optional<std::string>("-2"));
}

TEST(Store, OneOfManyThreadsSetsAKeyOnce) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  std::atomic<int> num_set = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] { num_set += store->set_once("first", "thread " + std::to_string(i)); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_set, 1);
  EXPECT_HAS(*store->find("first"), "thread ");
}

TEST(Store, APrefixSeparatesRunsInOneStore) {
  StoreServer server("127.0.0.1", 0);
  auto a = connect_store("127.0.0.1", server.port(), 10s, "a"), b = connect_store("127.0.0.1", server.port(), 10s, "b");
  a->set("key", "1");
  EXPECT_EQ(b->find("key"), std::nullopt);
  EXPECT_TRUE(b->set_once("key", "2"));
  EXPECT_EQ(a->find("key"), std::optional<std::string>("1"));
}

TEST(Store, TakesValuesThatAreTooLongForOneRequest) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  for (size_t size : {size_t{4} << 20, (size_t{4} << 20) + 1, size_t{30} << 20}) {
    std::string value(size, 'x');
    value.back() = 'y';
    store->set("long", value);
    EXPECT_TRUE(store->find("long") == value) << size;
  }
  store->erase("long");
  EXPECT_EQ(store->find("long"), std::nullopt);
  EXPECT_EQ(store->find("long/part 0"), std::nullopt) << "no part is left";
}

TEST(Store, APortInUseIsNamed) {
  StoreServer server("127.0.0.1", 0);
  const std::string text = refusal([&] { StoreServer("127.0.0.1", server.port()); });
  EXPECT_HAS(text, "port " + std::to_string(server.port()) + ": Address already in use");
  EXPECT_HAS(text, "MASTER_PORT");
}

TEST(Store, AServerOfAllInterfacesAnswersOnEach) {
  StoreServer server("", 0);
  auto a = connect_store("127.0.0.1", server.port(), 10s), b = connect_store("127.0.0.2", server.port(), 10s);
  a->set("key", "value");
  EXPECT_TRUE(b->find("key"));
  StoreServer loopback("127.0.0.1", 0);
  EXPECT_HAS(refusal([&] { connect_store("127.0.0.2", loopback.port(), 100ms); }), "Connection refused");
}

TEST(Store, APortWithoutAListenerIsNamedAfterTheTimeout) {
  int port = 0;
  {
    StoreServer server("127.0.0.1", 0);
    port = server.port();
  }
  const std::string text = refusal([&] { connect_store("127.0.0.1", port, 200ms); });
  EXPECT_HAS(text, "no store at 127.0.0.1:" + std::to_string(port) + " within 0.2 s: Connection refused");
  EXPECT_HAS(refusal([&] { connect_store("no-such-host.invalid", 1, 100ms); }),
             "cannot resolve 'no-such-host.invalid'");
}

TEST(Store, AListenerThatIsNotAStoreIsRefused) {
  SilentServer silent;
  EXPECT_HAS(refusal([&] { connect_store("127.0.0.1", silent.port(), 300ms); }),
             "it accepts connections, but does not answer");
  SilentServer other;
  std::thread answering([&] { other.answer_once("HTTP/1.1 400 Bad Request"); });
  EXPECT_HAS(refusal([&] { connect_store("127.0.0.1", other.port(), 1ms); }),
             "the program that answers is not a store");
  answering.join();
}

TEST(Store, AServerThatStartsLaterIsFound) {
  int port = 0;
  {
    StoreServer server("127.0.0.1", 0);
    port = server.port();
  }
  std::unique_ptr<StoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(200ms);
    server = std::make_unique<StoreServer>("127.0.0.1", port);
  });
  EXPECT_NE(connect_store("127.0.0.1", port, 30s), nullptr);
  later.join();
}

// A server in a separate process, which can be stopped and killed.
class ServerProcess {
 public:
  ServerProcess() {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    process_ = fork();
    if (process_ == 0) {
      StoreServer server("127.0.0.1", 0);
      const int port = server.port();
      if (write(ends[1], &port, sizeof port) != sizeof port) _exit(1);
      for (;;) pause();
    }
    EXPECT_EQ(read(ends[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    close(ends[0]);
    close(ends[1]);
  }
  ~ServerProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  int port() const { return port_; }
  void end() const { kill(process_, SIGKILL); }
  void stop() const {
    kill(process_, SIGSTOP);
    waitpid(process_, nullptr, WUNTRACED);
  }
  void resume() const { kill(process_, SIGCONT); }

 private:
  pid_t process_ = 0;
  int port_ = 0;
};

TEST(Store, AServerThatIsKilledIsAnErrorWithoutABacktrace) {
  ServerProcess server;
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  store->set("key", "value");
  server.end();
  testing::internal::CaptureStderr();
  const std::string text = refusal([&] {
    for (int i = 0; i < 1000; ++i) {
      store->find("key");
      std::this_thread::sleep_for(1ms);
    }
  });
  EXPECT_HAS(text, "lost the store at 127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(text.find("frame #"), std::string::npos) << text;
  EXPECT_HAS(refusal([&] { store->set("key", "value"); }), "lost the store");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "no backtraces of c10d";
}

TEST(Store, AServerThatHangsTimesOut) {
  ServerProcess server;
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  server.stop();
  store->set_timeout(1500ms);
  EXPECT_HAS(refusal([&] { store->find("key"); }), ": no answer within 1.5 s");
  server.resume();  // the late answer is not taken for the answer to another request
  EXPECT_HAS(refusal([&] { store->add("counter", 1); }), ": no answer within 1.5 s");
}

// A connection of a program that is not a rank.
class ForeignClient {
 public:
  explicit ForeignClient(int port) : socket_(File::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(socket_.descriptor(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void send_bytes(const std::string& bytes) const {
    (void)!send(socket_.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // In c10d's protocol, like any client of c10d.
  void set(const std::string& key, const std::string& value) {
    send_bytes((std::exchange(has_greeted_, true) ? "" : kHello) + '\1' + sized(key) + sized(value));
  }
  static std::string number(uint64_t value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }
  static std::string sized(const std::string& text) { return number(text.size()) + text; }
  static inline const std::string kHello = std::string("\0\xCE\xF7\x85\x3C", 5);

 private:
  File socket_;
  bool has_greeted_ = false;
};

TEST(Store, BytesOfAForeignClientNeitherEndNorStallIt) {
  ServerProcess server;
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  const std::string huge = ForeignClient::number(uint64_t{1} << 62);
  const std::string bytes[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                               std::string(1 << 20, '\xff'),
                               std::string(64, '\0'),
                               ForeignClient::kHello.substr(0, 3),
                               ForeignClient::kHello + "\xff",
                               ForeignClient::kHello + '\1' + huge + "key",
                               ForeignClient::kHello + '\2' + huge,
                               ForeignClient::kHello + '\3' + huge,
                               ForeignClient::kHello + '\4' + ForeignClient::sized("key")};
  std::vector<std::unique_ptr<ForeignClient>> clients;
  for (const std::string& text : bytes) {
    clients.push_back(std::make_unique<ForeignClient>(server.port()));
    clients.back()->send_bytes(text);
    store->set("key", "value");
    EXPECT_EQ(store->find("key"), std::optional<std::string>("value"));
  }
  clients.clear();
  EXPECT_EQ(store->add("counter", 1), 1);
}

TEST(Store, AValueThatNoRankWroteIsNamed) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  ForeignClient client(server.port());
  for (const char* count : {"p99999999999999999999", "p123456789", "p-1", "p0", "px", "p"}) {
    client.set("/chassis/key", count);
    for (int i = 0; i < 1000 && store->find("marker") != count; ++i) {
      client.set("/chassis/marker", std::string("v") + count);
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_HAS(refusal([&] { store->find("key"); }), std::string("the store holds '") + (count + 1) + "'");
  }
  client.set("/chassis/parts", "p3");
  client.set("/chassis/end", "v");
  for (int i = 0; i < 1000 && !store->find("end"); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_HAS(refusal([&] { store->find("parts"); }), "lacks a part of 'parts'");
}

TEST(RankFailure, AValueThatNoRankWroteIsNamed) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  for (const std::string text : {"no failure", "1:0", "1:01:11:x1:y", "1:x1:21:y", "1:05:999991:y"}) {
    store->set("failure", text);
    EXPECT_HAS(refusal([&] { find_failure(*store); }), "which no rank of this program wrote");
  }
}

TEST(RankFailure, OnlyTheFirstIsKept) {
  StoreServer server("127.0.0.1", 0);
  auto store = connect_store("127.0.0.1", server.port(), 10s);
  EXPECT_FALSE(find_failure(*store));
  EXPECT_TRUE(post_failure(*store, {3, ExitCode::kNumeric, "rank 3: 12:loss is nan"}));
  EXPECT_FALSE(post_failure(*store, {1, ExitCode::kInternal, "rank 1: later"}));
  const auto failure = find_failure(*store);
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 3);
  EXPECT_EQ(failure->code, ExitCode::kNumeric);
  EXPECT_EQ(failure->text, "rank 3: 12:loss is nan");
}

TEST(RankFailure, TextsArePackedWithTheirLengths) {
  EXPECT_THROW(unpack(pack({"a", "b"}), 3), Error);
  const std::vector<std::vector<std::string>> cases = {{}, {""}, {"", ""}, {"a", std::string("\0:12:", 5), "3:b"}};
  for (const auto& texts : cases) EXPECT_EQ(unpack(pack(texts)), texts);
  for (const char* broken : {"1", "2:a", ":", "x:", "-1:a", "1:aa"}) EXPECT_THROW(unpack(broken), Error) << broken;
}

}  // namespace
}  // namespace chassis
