// The output of `chassis report`, `chassis watch` and the page for whole runs.
#include <chrono>
#include <sstream>
#include <thread>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "tests/regress/started_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loopback.hpp"
#include "tests/support/terminal.hpp"

namespace chassis::test {
namespace {

constexpr Sharding kTwoRanks{"fsdp2", 2, "[mesh]\ndp_shard = 2\n[[parallel]]\nplugin = \"fsdp2\"\n"};

class Report : public testing::Test, protected StartedRun {
 protected:
  Report() : StartedRun({"run.threads=1", "train.micro_batch_size=2", "train.global_batch_size=4"}) {}

  Outcome verb(std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_PROGRAM);
    return run_process(words, folder().path());
  }
  Json report(const std::string& name) {
    const Outcome outcome = verb({"report", directory(name), "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return parse_json(outcome.output, name);
  }
};

TEST_F(Report, HasTheNumbersOfMetricsJsonl) {
  train("two", {"run.max_steps=6", "checkpoint.every_steps=3"}, kTwoRanks);
  const Json json = report("two");
  const Json& run = json["runs"][0];
  EXPECT_EQ(json["schema"], "chassis.report/1");
  EXPECT_EQ(run["state"], "done");
  EXPECT_EQ(run["step"], 6);
  EXPECT_EQ(run["max_steps"], 6);
  std::istringstream lines(read_file(directory("two") + "/metrics.jsonl"));
  Json last;
  for (std::string line; std::getline(lines, line);) last = Json::parse(line);
  for (const char* name : {"loss", "lr", "step_ms", "comm_exposed_ms", "comm_hidden_ms", "save_ms",
                           "memory/parameters_bytes", "memory/optimizer_bytes", "memory/activations_bytes"})
    EXPECT_EQ(run["metrics"][name]["last"], last[name]) << name;
  EXPECT_GT(last["comm_exposed_ms"].get<double>(), 0.0);
  ASSERT_EQ(run["checkpoints"].size(), 2u);
  EXPECT_EQ(run["checkpoints"][1]["step"], 6);
  EXPECT_EQ(run["mesh"], "dp_shard=2");
  EXPECT_GT(run["plan"]["peak_bytes"], 0);
  ASSERT_EQ(run["ranks"].size(), 2u);
  EXPECT_EQ(run["ranks"][1]["rank"], 1);
  EXPECT_GT(run["ranks"][1]["active_memory_bytes"], 0);
  EXPECT_EQ(run["checkpoints"][1]["check"], "whole");
  EXPECT_GT(run["checkpoints"][0]["bytes"].get<double>(), 0.0);
  const Json facts = parse_json(read_file(directory("two") + "/report.json"), "report.json");
  EXPECT_EQ(facts["mesh"], "dp_shard=2");
  EXPECT_EQ(facts["strategies"], "fsdp2");
  EXPECT_GT(facts["plan"]["peak_bytes"].get<double>(), 0.0);

  const std::string text = verb({"report", directory("two")}).output;
  EXPECT_HAS(text, "done at step 6 of 6");
  EXPECT_HAS(text, "checkpoints 2 saved, the last at step 6");
  const Outcome watched = verb({"watch", directory("two")});  // ends, since the run has
  EXPECT_EQ(watched.exit_code, 0);
  EXPECT_HAS(watched.output, "done at step 6 of 6");
}

TEST_F(Report, MeasuresTheProcessorForPercentOfLight) {
  train("one", {"run.max_steps=3"});
  const Outcome text = verb({"report", directory("one"), "--light"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_HAS(text.output, " % by ");
  EXPECT_HAS(text.output, "1 thread\n");
  const Outcome outcome = verb({"report", directory("one"), "--light", "--json"});
  const Json light = parse_json(outcome.output, "report")["runs"][0]["light"];
  EXPECT_GT(light["percent"], 0.0);
  EXPECT_LT(light["percent"], 100.0);
  EXPECT_GT(light["product_flops"], 1e8);
  EXPECT_GT(light["copy_bytes_per_s"], 1e7);
  EXPECT_FALSE(report("one")["runs"][0].contains("light"));
}

TEST_F(Report, WatchOnATerminalWaitsForARunThatHasNotBegun) {
  const std::string run = directory("later");
  std::thread begins;
  const auto begin_when_it_waits = [&](const std::string& shown) {
    if (!begins.joinable() && shown.find("does not exist; waiting for it") != shown.npos)
      begins = std::thread([&] { train("later", {"run.max_steps=2"}); });
  };
  const std::string shown = on_terminal(
      200, [&] { execl(CHASSIS_PROGRAM, "chassis", "watch", run.c_str(), nullptr); }, begin_when_it_waits);
  ASSERT_TRUE(begins.joinable()) << shown;
  begins.join();
  EXPECT_HAS(shown, "done at step 2 of 2");
  EXPECT_HAS(verb({"watch", directory("never")}).output, "does not exist\n");  // not on a terminal
  for (const std::string& path : {run + "/metrics.jsonl", folder() / "no/such/place", folder().path(), std::string()})
    EXPECT_HAS(on_terminal(200, [&] { execl(CHASSIS_PROGRAM, "chassis", "watch", path.c_str(), nullptr); }), "error: ");
}

TEST_F(Report, NamesDamagedAndRemovedCheckpoints) {
  train("one", {"run.max_steps=4", "checkpoint.every_steps=1", "checkpoint.keep_last=2"});
  std::filesystem::resize_file(directory("one") + "/checkpoints/step-000003/manifest.json", 10);
  const Json checkpoints = report("one")["runs"][0]["checkpoints"];
  ASSERT_EQ(checkpoints.size(), 4u);
  EXPECT_EQ(checkpoints[0]["check"], "removed");
  EXPECT_NE(checkpoints[2]["check"], "whole");
  EXPECT_EQ(checkpoints[3]["check"], "whole");
}

TEST_F(Report, ComparesRuns) {
  train("a", {"run.max_steps=2"});
  train("b", {"run.max_steps=3", "optimizer.lr=0.01"});
  const std::string page = folder() / "page.html";
  const Outcome outcome = verb({"report", directory("a"), directory("b"), "--html", page});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "optimizer.lr: 0.002 | 0.01\n");
  EXPECT_HAS(outcome.output, "run.max_steps: 2 | 3\n");
  EXPECT_HAS(read_file(page), "<h1>2 runs</h1>");
  EXPECT_EQ(verb({"report", directory("a"), "--html", page}).exit_code, 0);
  write_text(page, "mine");
  EXPECT_HAS(verb({"report", directory("a"), "--html", page}).output, "this file is not a report");
  EXPECT_EQ(read_file(page), "mine");
  EXPECT_HAS(verb({"report", folder() / "absent"}).output, "does not exist");
}

TEST_F(Report, ARunThatGoesOnHasOneHistory) {
  train("more", {"run.max_steps=3"});
  train("more", {"run.max_steps=5"});
  const Json run = report("more")["runs"][0];
  EXPECT_EQ(run["step"], 5);
  EXPECT_EQ(run["checkpoints"].back()["step"], 5);
  EXPECT_EQ(run["state"], "done");
  std::filesystem::remove(directory("more") + "/events.jsonl");
  EXPECT_EQ(report("more")["runs"][0]["state"], "unknown");
}

TEST_F(Report, ForeignFilesAreNotReplaced) {
  for (const char* name : {"events.jsonl", "report.json"}) {
    std::filesystem::create_directories(directory(name));
    write_text(directory(name) + "/" + name, "mine");
    const Outcome outcome = start(name, {"run.max_steps=1"});
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_HAS(outcome.output, "this program did not write it");
    EXPECT_EQ(read_file(directory(name) + "/" + name), "mine");
  }
}

// The page of a run that is training.
TEST_F(Report, ThePageIsServedWhileTheRunTrains) {
  const auto words = command("live", {"run.max_steps=100000", "log.sinks=console,jsonl,webpage", "log.webpage.port=0"});
  Process process(words, folder().path());
  std::string output;
  for (int i = 0; i < 600 && output.find("step 3/") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    output = process.output_so_far();
  }
  const std::string mark = "the run as a page: http://";
  ASSERT_NE(output.find(mark), std::string::npos) << output;
  std::string address = output.substr(output.find(mark));
  address.resize(address.find('\n'));
  const uint16_t port = fake::port_in(address);
  const size_t token = address.find('/', address.find("127.0.0.1:"));
  const auto get = [&](const std::string& path) {
    return fake::answer_of(
        port, "GET " + address.substr(token, 33) + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  };
  const std::string page = get("/"), next = get("/data?since=2");
  EXPECT_HAS(page, "<!doctype html><!-- chassis report -->");
  EXPECT_HAS(page, "running at step ");
  EXPECT_HAS(page, "\"live\":true");
  EXPECT_HAS(fake::answer_of(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 403");
  const Json data = Json::parse(next.substr(next.find("\r\n\r\n") + 4));
  EXPECT_EQ(data["runs"][0]["from"], 1);
  EXPECT_GE(data["runs"][0]["step"], 3);
  EXPECT_HAS(verb({"watch", directory("live"), "--once"}).output, "running at step ");
  process.send(SIGKILL);
  process.wait();
  EXPECT_HAS(verb({"watch", directory("live")}).output, "killed at step ");
}

}  // namespace
}  // namespace chassis::test
