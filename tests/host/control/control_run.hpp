// A run directory and a runtime directory for sockets, and raw connections to a run's socket.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/control/control_client.hpp"
#include "host/control/control_server.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

// During its lifetime, the variable has this value.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before, was_set_ = true;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (was_set_)
      setenv(name_, before_.c_str(), 1);
    else
      unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::string before_;
  bool was_set_ = false;
};

// A connection that sends any bytes.
class RawClient {
 public:
  explicit RawClient(const std::string& run) : socket_(connected_control_socket(read_control_address(run).socket)) {
    EXPECT_TRUE(socket_.is_open());
  }
  // False once the other end has closed.
  bool send(const std::string& bytes) {
    for (size_t begin = 0; begin < bytes.size();) {
      pollfd awaited{socket_.descriptor(), POLLOUT, 0};
      if (poll(&awaited, 1, 3000) <= 0) return false;
      const ssize_t sent = ::send(socket_.descriptor(), bytes.data() + begin, bytes.size() - begin, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) begin += static_cast<size_t>(sent);
    }
    return true;
  }
  void end_input() { shutdown(socket_.descriptor(), SHUT_WR); }
  void close() { socket_ = File(); }
  // The next line; "" if the connection is closed, or after 3 s.
  std::string line() {
    for (;;) {
      if (const size_t end = received_.find('\n'); end != std::string::npos) {
        const std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        return line;
      }
      if (!read()) return "";
    }
  }
  // True if the other end closes the connection within 3 s.
  bool is_closed() {
    while (read()) {
    }
    return is_closed_;
  }

 private:
  bool read() {
    char bytes[4096];
    pollfd awaited{socket_.descriptor(), POLLIN, 0};
    if (poll(&awaited, 1, 3000) <= 0) return false;
    const ssize_t got = recv(socket_.descriptor(), bytes, sizeof bytes, 0);
    is_closed_ = got <= 0;
    if (got > 0) received_.append(bytes, static_cast<size_t>(got));
    return got > 0;
  }
  File socket_;
  std::string received_;
  bool is_closed_ = false;
};

class ControlRun : public testing::Test {
 protected:
  ControlRun() {
    log::reset_counted_warnings();
    std::filesystem::create_directories(scratch_ / "run");
    std::filesystem::create_directories(scratch_ / "runtime");
    chmod((scratch_ / "runtime").c_str(), 0700);
  }

  void start(int64_t generation = 3, ControlLimits limits = {}) {
    server_ = std::make_unique<ControlServer>(run(), generation, limits);
    ASSERT_EQ(server_->reason(), "");
  }
  std::string run() const { return scratch_ / "run"; }

  static ControlRequest request(ControlVerb verb, const std::string& id, int64_t generation = -1) {
    ControlRequest made;
    made.verb = verb;
    made.id = id;
    made.generation = generation;
    if (verb == ControlVerb::kSwap || verb == ControlVerb::kCheck) made.set = {"attention.plugin=sdpa"};
    return made;
  }
  // Asks on a new connection, and returns the end; an outcome of "no end" after 3 s.
  ControlReply ask(ControlVerb verb, const std::string& id, int64_t generation = -1) {
    RawClient client(run());
    client.send(control_line(request(verb, id, generation)) + "\n");
    for (std::string line; !(line = client.line()).empty();)
      if (ControlReply reply = parse_control_reply(line); reply.kind == ControlReply::Kind::kEnd) return reply;
    ControlReply none;
    none.name = "no end";
    return none;
  }
  ControlReply status() { return ask(ControlVerb::kStatus, "status"); }

  // The next queued request, as the thread of the steps gets it; an id of "" after 3 s.
  ControlRequest taken() {
    for (int i = 0; i < 3000; ++i) {
      if (std::optional<ControlRequest> next = server_->take()) return *next;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "no request arrived";
    return {};
  }
  static uint64_t warnings(const std::string& key) {
    for (const auto& [name, count] : counted_warnings())
      if (name == key) return count;
    return 0;
  }

  ScratchDirectory scratch_;
  Variable runtime_{"XDG_RUNTIME_DIR", scratch_ / "runtime"};
  std::unique_ptr<ControlServer> server_;
};

}  // namespace chassis::test
