// The page as a scraper gets it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "tests/support/expect_has.hpp"
#include "tests/support/sink_run.hpp"

namespace {

class Prometheus : public testing::Test {
 protected:
  // The port that the log names.
  uint16_t port() const {
    const std::string& line = host_.lines.at(0);
    const size_t at = line.find("127.0.0.1:") + 10;
    return static_cast<uint16_t>(std::stoi(line.substr(at)));
  }
  int connection() const {
    const int file = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return file;
  }
  std::string answer(const std::string& request) const {
    const int file = connection();
    EXPECT_EQ(send(file, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    std::string out;
    char some[512];
    for (ssize_t got = 0; (got = recv(file, some, sizeof some, 0)) > 0;) out.append(some, static_cast<size_t>(got));
    close(file);
    return out;
  }

  fake::Host host_;
  fake::SinkRun run_{host_, CHASSIS_TEST_PLUGIN_DIR "/prometheus.so", "prometheus", {{"port", "0"}}};
};

TEST_F(Prometheus, ShowsTheNewestValues) {
  run_.start("/");
  run_.scalars(1, {{"loss", 3}, {"comm/tp/all_reduce_bytes", 1.5}});
  run_.scalars(2, {{"loss", 2.25}, {"grad_norm", std::nan("")}});
  const std::string page = answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_HAS(page, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4");
  EXPECT_HAS(page, "# TYPE chassis_loss gauge\nchassis_loss{run=\"run\"} 2.25\n");
  EXPECT_HAS(page, "chassis_comm_tp_all_reduce_bytes{run=\"run\"} 1.5\n");
  EXPECT_HAS(page, "chassis_grad_norm{run=\"run\"} NaN\n");
  EXPECT_HAS(page, "chassis_step{run=\"run\"} 2\n");
}

TEST_F(Prometheus, AnswersNothingElse) {
  run_.start("/");
  EXPECT_HAS(answer("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404");
  EXPECT_HAS(answer("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405");
  EXPECT_EQ(answer(std::string(10000, 'x')), "");
  EXPECT_HAS(answer("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "HTTP/1.1 200");
}

TEST_F(Prometheus, NamesAPortThatIsTaken) {
  run_.start("/");
  fake::Host host;
  fake::SinkRun other(host, CHASSIS_TEST_PLUGIN_DIR "/prometheus.so", "prometheus", {{"port", std::to_string(port())}});
  try {
    other.start("/");
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_HAS(std::string(error.what()), "port " + std::to_string(port()) + " of 127.0.0.1: Address already in use");
  }
}

}  // namespace
