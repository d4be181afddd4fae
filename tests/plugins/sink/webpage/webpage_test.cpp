// The page, its data and its events, as a browser gets them; and what is refused.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"
#include "tests/support/sink_run.hpp"

namespace {

class Webpage : public testing::Test {
 protected:
  uint16_t port() const { return fake::port_in(host_.lines.at(0)); }
  // "/TOKEN", as the log shows it.
  std::string token() const {
    const std::string& line = host_.lines.at(0);
    const size_t begin = line.find('/', line.find("127.0.0.1:"));
    return line.substr(begin, line.rfind('/') - begin);
  }
  std::string get_raw(const std::string& path, const std::string& host = "127.0.0.1:1",
                      const std::string& end = "") const {
    return fake::answer_of(port(), "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n", end);
  }
  std::string get(const std::string& path, const std::string& host = "127.0.0.1:1", const std::string& end = "") const {
    return get_raw(token() + path, host, end);
  }

  fake::Host host_;
  fake::SinkRun run_{host_, CHASSIS_TEST_PLUGIN_DIR "/webpage.so", "webpage", {{"port", "0"}}};
};

TEST_F(Webpage, GivesThePageAndItsData) {
  run_.start("/");
  const std::string page = get("/");
  EXPECT_HAS(page, "HTTP/1.1 200 OK\r\n");
  EXPECT_HAS(page, "Content-Type: text/html; charset=utf-8\r\n");
  EXPECT_HAS(page, "\r\n\r\n<!doctype html>");
  EXPECT_HAS(get("/", "localhost:8642"), "HTTP/1.1 200 OK\r\n");
  EXPECT_HAS(get("/data?since=17"), "\r\n\r\n{\"since\":17}");
  EXPECT_HAS(get("/data"), "\r\n\r\n{\"since\":0}");
  run_.finish(0);
}

TEST_F(Webpage, IgnoresRanges) {
  run_.start("/");
  std::string ranges = "0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const std::string all = get("/", "LOCALHOST:1\r\nRange: bytes=" + ranges);
  EXPECT_HAS(all, "HTTP/1.1 200 OK");
  EXPECT_LT(all.size(), 1000u);
  run_.finish(0);
}

TEST_F(Webpage, SendsAnEventForEachChange) {
  run_.start("/");
  run_.scalars(1, {{"loss", 3}});
  const std::string events = get("/events", "127.0.0.1", "data: 1\n\n");
  EXPECT_HAS(events, "Content-Type: text/event-stream\r\n");
  EXPECT_HAS(events, "data: 1\n\n");
  run_.finish(1);
}

TEST_F(Webpage, RefusesAllElse) {
  run_.start("/");
  EXPECT_HAS(get("/other"), "HTTP/1.1 404");
  EXPECT_HAS(get("/../etc/passwd"), "HTTP/1.1 404");
  EXPECT_HAS(get("/data?since=x"), "HTTP/1.1 400");
  EXPECT_HAS(get("/data?since=-1"), "HTTP/1.1 400");
  EXPECT_HAS(get("/", "attacker.example"), "HTTP/1.1 403");
  EXPECT_HAS(get("/", ""), "HTTP/1.1 403");
  EXPECT_HAS(get("/", "127.0.0.1:80@attacker.example"), "HTTP/1.1 403");
  EXPECT_HAS(get("/", "localhost\r\nHost: attacker.example"), "HTTP/1.1 403");
  EXPECT_HAS(fake::answer_of(port(), "POST " + token() +
                                         "/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                         "Content-Length: 1\r\n\r\nx"),
             "HTTP/1.1 405");
  EXPECT_HAS(fake::answer_of(port(), "nonsense\r\n\r\n"), "HTTP/1.1 400");
  run_.finish(0);
}

// Any process of the machine reaches the port.
TEST_F(Webpage, RefusesWhoDoesNotKnowTheToken) {
  run_.start("/");
  EXPECT_EQ(token().size(), 33u);
  std::string other = token();
  other.back() = other.back() == '0' ? '1' : '0';
  for (const std::string& path :
       {std::string("/"), std::string("/data"), std::string("/events"), std::string("/favicon.ico"), other + "/",
        token() + "0/", token().substr(0, 32) + "/", std::string("//")}) {
    const std::string answer = get_raw(path);
    EXPECT_HAS(answer, "HTTP/1.1 403");
    EXPECT_EQ(answer.find("doctype"), std::string::npos) << path;
    EXPECT_EQ(answer.find(token()), std::string::npos) << path;
  }
  fake::Host host;
  fake::SinkRun again(host, CHASSIS_TEST_PLUGIN_DIR "/webpage.so", "webpage", {{"port", "0"}});
  again.start("/");
  EXPECT_EQ(host.lines.at(0).find(token()), std::string::npos);
  again.finish(0);
  run_.finish(0);
}

TEST_F(Webpage, LimitsThePagesThatFollow) {
  run_.start("/");
  std::vector<int> open;
  for (int i = 0; i < 16; ++i) {
    open.push_back(fake::connection_to(port()));
    const std::string request = "GET " + token() + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ASSERT_EQ(send(open.back(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char first = 0;
    ASSERT_EQ(recv(open.back(), &first, 1, 0), 1);
  }
  EXPECT_HAS(get("/events", "localhost"), "HTTP/1.1 503");
  EXPECT_HAS(get("/"), "<!doctype html>");
  run_.finish(1);
  for (const int file : open) close(file);
}

TEST_F(Webpage, NamesAPortThatIsTaken) {
  run_.start("/");
  fake::Host host;
  fake::SinkRun other(host, CHASSIS_TEST_PLUGIN_DIR "/webpage.so", "webpage", {{"port", std::to_string(port())}});
  try {
    other.start("/");
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_HAS(std::string(error.what()), "port " + std::to_string(port()) + " of 127.0.0.1: Address already in use");
  }
}

}  // namespace
