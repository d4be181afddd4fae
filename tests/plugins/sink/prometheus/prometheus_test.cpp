// The page as a scraper gets it.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"
#include "tests/support/sink_run.hpp"

namespace {

class Prometheus : public testing::Test {
 protected:
  uint16_t port() const { return fake::port_in(host_.lines.at(0)); }
  std::string answer(const std::string& request) const { return fake::answer_of(port(), request); }

  fake::Host host_;
  fake::SinkRun run_{host_, CHASSIS_TEST_PLUGIN_DIR "/prometheus.so", "prometheus", {{"port", "0"}}};
};

TEST_F(Prometheus, ShowsTheNewestValues) {
  run_.start("/");
  run_.scalars(1, {{"loss", 3}, {"comm/tp/all_reduce_bytes", 1.5}});
  run_.scalars(2, {{"loss", 2.25}, {"grad_norm", std::nan("")}});
  const std::string page = answer("GET /metrics HTTP/1.1\r\nHost: LocalHost:9400\r\n\r\n");
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
  EXPECT_HAS(answer(std::string(10000, 'x')), "HTTP/1.1 431");
  EXPECT_HAS(answer("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "HTTP/1.1 200");
  EXPECT_HAS(answer("GET /metrics HTTP/1.1\r\nhost: attacker.example\r\n\r\n"), "HTTP/1.1 403");
  EXPECT_HAS(answer("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example\r\n\r\n"), "HTTP/1.1 403");
}

// It sends a byte now and then, so that no single wait is long.
TEST_F(Prometheus, LeavesASlowClient) {
  run_.start("/");
  const int slow = fake::connection_to(port());
  std::thread drips([&] {
    while (send(slow, "x", 1, MSG_NOSIGNAL) == 1) usleep(20'000);
  });
  EXPECT_HAS(answer("GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200");
  drips.join();
  close(slow);
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
