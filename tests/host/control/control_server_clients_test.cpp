// Clients that are slow, many, broken or foreign: each bound holds, and the server goes on.
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "host/base/error.hpp"
#include "tests/host/control/control_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class ControlServerClients : public test::ControlRun {
 protected:
  static std::string status_line() { return control_line(request(ControlVerb::kStatus, "q")) + "\n"; }
  void expect_to_go_on() { EXPECT_EQ(status().name, "status"); }
};

TEST_F(ControlServerClients, ALineMayArriveInParts) {
  start();
  test::RawClient client(run());
  for (const char c : status_line()) ASSERT_TRUE(client.send(std::string(1, c)));
  EXPECT_HAS(client.line(), "\"status\"");
  ASSERT_TRUE(client.send(status_line() + status_line() + "{"));
  EXPECT_HAS(client.line(), "\"status\"");
  EXPECT_HAS(client.line(), "\"status\"");
  client.end_input();
  EXPECT_HAS(client.line(), "the connection ended within a line");
  EXPECT_TRUE(client.is_closed());
}

TEST_F(ControlServerClients, AnIncompleteLineHasATimeLimit) {
  start(0, {.line_time = 100ms});
  test::RawClient partial(run()), silent(run()), waiting(run());
  ASSERT_TRUE(waiting.send(control_line(request(ControlVerb::kSwap, "s")) + "\n"));
  taken();
  const auto begin = Clock::now();
  ASSERT_TRUE(partial.send("{\"control\""));
  EXPECT_HAS(partial.line(), "no complete line within 100 ms");
  EXPECT_HAS(silent.line(), "no complete line within 100 ms");
  EXPECT_TRUE(partial.is_closed());
  EXPECT_TRUE(silent.is_closed());
  EXPECT_GE(Clock::now() - begin, 90ms);
  // A client that awaits a reply may be silent for longer.
  std::this_thread::sleep_for(100ms);
  server_->finish(true, "committed", "");
  EXPECT_HAS(waiting.line(), "accepted");
  EXPECT_HAS(waiting.line(), "committed");
  expect_to_go_on();
}

TEST_F(ControlServerClients, RefusesALineOf2MiB) {
  start(0, {.line_time = 200ms});
  test::RawClient client(run());
  client.send(std::string(2 << 20, 'x'));
  EXPECT_HAS(client.line(), "the line is too long, maximum 1048576 bytes");
  EXPECT_TRUE(client.is_closed());
  expect_to_go_on();
}

TEST_F(ControlServerClients, AnswersBytesThatAreNoRequest) {
  start();
  test::RawClient client(run());
  std::string bytes;
  for (int c = 0; c < 256; ++c)
    if (c != '\n') bytes += static_cast<char>(c);
  ASSERT_TRUE(client.send(bytes + "\n\n{}\n" + status_line()));
  EXPECT_HAS(client.line(), "the line is not UTF-8");
  EXPECT_HAS(client.line(), "not valid JSON");
  EXPECT_HAS(client.line(), "'control' is missing");
  EXPECT_HAS(client.line(), "\"status\"");
}

TEST_F(ControlServerClients, Of40Clients16AreServed) {
  start();
  std::vector<std::unique_ptr<test::RawClient>> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(std::make_unique<test::RawClient>(run()));
  int num_served = 0, num_refused = 0;
  for (const auto& client : clients) {
    client->send(status_line());
    const std::string line = client->line();
    num_served += line.find("\"status\"") != std::string::npos;
    num_refused += line.find("16 clients are connected already") != std::string::npos;
  }
  EXPECT_EQ(num_served, 16);
  EXPECT_EQ(num_refused, 24);
  clients.clear();
  for (int i = 0; i < 100; ++i) {
    if (ask(ControlVerb::kStatus, "q").ok) break;
    std::this_thread::sleep_for(10ms);
  }
  expect_to_go_on();
}

TEST_F(ControlServerClients, DropsAClientThatDoesNotRead) {
  start(0, {.unsent_bytes = 100'000});
  server_->set_status({{"text", std::string(50'000, 'x')}});
  test::RawClient client(run());
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += status_line();
  client.send(lines);
  for (int i = 0; i < 300 && warnings("control socket: slow clients") == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(warnings("control socket: slow clients"), 1u);
  EXPECT_TRUE(client.is_closed());
  expect_to_go_on();
}

TEST_F(ControlServerClients, ClientsThatCloseAtAnyMomentDoNoHarm) {
  start();
  server_->set_status({{"text", std::string(10'000, 'x')}});
  for (size_t length = 0; length <= status_line().size(); ++length) {
    test::RawClient client(run());
    client.send(status_line().substr(0, length));
  }
  expect_to_go_on();
}

TEST_F(ControlServerClients, ClosesConnectionsOfOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  start();
  sockaddr_un address{};
  ASSERT_TRUE(set_socket_path(address, read_control_address(run()).socket));
  // Lets the other user reach the socket, which the modes would prevent.
  for (const std::string& path : {scratch_.path(), scratch_ / "runtime", scratch_ / "runtime/chassis"})
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  ASSERT_EQ(chmod(address.sun_path, 0666), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // only calls of the system from here on
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 0;
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
    if (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(2);
    _exit(recv(socket, &byte, 1, 0) == 0 ? 0 : 3);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(warnings("control socket: connections of other users"), 1u);
  expect_to_go_on();
}

TEST_F(ControlServerClients, TheClientSaysThatARunDoesNotAnswer) {
  start();
  const std::string text = test::text_of_file(run() + "/control.json");
  server_.reset();
  // A socket whose queue is never read, as that of a stopped process.
  ControlListener listener = listen_for_control(scratch_ / "runtime/chassis", File::open_directory(run()));
  test::write_text(run() + "/control.json", text);
  try {
    ControlClient(run(), 50ms).ask(request(ControlVerb::kStatus, "q"), [](const ControlReply&) {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCommunication);
    EXPECT_HAS(error.message(), "does not answer; waited 50 ms");
  }
}

}  // namespace
}  // namespace chassis
