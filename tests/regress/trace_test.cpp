// Traces of the steps of a run on two processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/regress/started_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

using nlohmann::json;
constexpr Sharding kTwoRanks{"fsdp2", 2, "[[parallel]]\nplugin = \"fsdp2\"\n"};
const std::vector<std::string> kSettings = {"run.max_steps=5", "run.threads=1", "train.global_batch_size=4",
                                            "train.micro_batch_size=1", "export.when=\"never\""};

// Nanoseconds: microseconds have three decimal places.
int64_t ns(const json& micros) { return std::llround(micros.get<double>() * 1000); }

struct TraceFile {
  std::map<int, std::string> tracks;  // by thread
  std::vector<json> spans;
  int sort_index = -1;  // process_sort_index

  explicit TraceFile(const std::string& path, int rank) {
    const json whole = json::parse(text_of_file(path));
    for (const json& event : whole.at("traceEvents")) {
      EXPECT_EQ(event.at("pid"), rank);
      if (event.at("ph") == "X")
        spans.push_back(event);
      else if (event.at("name") == "process_sort_index")
        sort_index = event.at("args").at("sort_index");
      else if (event.at("name") == "thread_name")
        tracks[event.at("tid")] = event.at("args").at("name");
    }
  }
  std::vector<json> on(const std::string& track) const {
    std::vector<json> out;
    for (const json& span : spans)
      if (tracks.at(span.at("tid")).starts_with(track)) out.push_back(span);
    return out;
  }
};

// On every track a span ends before the next one begins, or lies inside it.
void expect_nested(const TraceFile& trace) {
  std::map<int, std::vector<std::pair<int64_t, int64_t>>> by_track;
  for (const json& span : trace.spans) {
    EXPECT_GE(ns(span.at("ts")), 0);
    EXPECT_GE(ns(span.at("dur")), 0);
    by_track[span.at("tid")].emplace_back(ns(span.at("ts")), ns(span.at("ts")) + ns(span.at("dur")));
  }
  for (auto& [track, spans] : by_track) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) {
      return std::pair(a.first, -a.second) < std::pair(b.first, -b.second);
    });
    std::vector<int64_t> open;
    for (const auto& [begin, end] : spans) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back()) << trace.tracks.at(track) << " at " << begin;
      open.push_back(end);
    }
  }
}

TEST(Traces, HaveEveryUnitAndTheBytesThatWereCounted) {
  const StartedRun run(kSettings);
  run.train("traced", {"log.trace=[2, 3]", "recompute.mode=\"full\"", "checkpoint.every_steps=2"}, kTwoRanks);
  std::map<std::string, uint64_t> counted;  // by op, on rank 0
  std::istringstream metrics(text_of_file(run.directory("traced") + "/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const json record = json::parse(line);
    if (record.at("step") != 2 && record.at("step") != 3) continue;
    for (const auto& [key, value] : record.items())
      if (key.starts_with("comm/") && key.ends_with("_bytes"))
        counted[key.substr(0, key.size() - 6)] += value.get<uint64_t>();
  }
  ASSERT_GE(counted.size(), 2u);
  std::vector<int64_t> begins;
  for (const int rank : {0, 1}) {
    SCOPED_TRACE(rank);
    const TraceFile trace(run.directory("traced") + "/trace/rank-" + std::to_string(rank) + ".json", rank);
    expect_nested(trace);
    EXPECT_EQ(trace.sort_index, rank);

    std::vector<std::string> steps;
    for (const json& span : trace.on("steps")) steps.push_back(span.at("name"));
    EXPECT_EQ(steps, (std::vector<std::string>{"step 2", "step 3"}));
    begins.push_back(ns(trace.on("steps").at(0).at("ts")));
    EXPECT_EQ(trace.on("data").size(), 2u);
    EXPECT_EQ(trace.on("micro-batches").size(), 2u * 2 * 2) << "2 steps of 2 micro-batches";
    EXPECT_EQ(trace.on("optimizer").size(), 2u * 3);
    EXPECT_GE(trace.on("saves").size(), 1u);

    std::map<std::string, int> runs;  // by unit
    for (const json& span : trace.on("units"))
      ++runs[span.at("cat").get<std::string>() + " " + span.at("name").get<std::string>() + " " +
             std::to_string(span.at("args").at("microbatch").get<int>())];
    for (const char* unit : {"embed", "layers.0", "layers.1", "layers.2", "head"})
      for (const char* microbatch : {" 0", " 1"})
        for (const char* phase : {"forward ", "backward "}) {
          const std::string key = phase + std::string(unit) + microbatch;
          EXPECT_EQ(runs[key], 2) << key << ": once in each step";
        }
    EXPECT_EQ(runs["recomputation layers.1 0"], 2);

    bool has_plugin = false;
    for (const json& span : trace.on("nodes")) has_plugin |= span.at("args").value("plugin", "") == "aten";
    EXPECT_TRUE(has_plugin);

    std::map<std::string, uint64_t> traced;
    for (const json& span : trace.on("collectives")) {
      const json& args = span.at("args");
      traced["comm/" + args.at("group").get<std::string>() + "/" + args.at("op").get<std::string>()] +=
          args.at("bytes").get<uint64_t>();
      EXPECT_LE(ns(args.at("wait_us")), ns(span.at("dur")));
    }
    if (rank == 0) {
      EXPECT_EQ(traced, counted);
    }
  }
  EXPECT_LT(std::abs(begins[0] - begins[1]), 5'000'000'000) << "one clock";
}

TEST(Traces, AreNotWrittenWithoutTheKey) {
  const StartedRun run(kSettings);
  run.train("plain", {}, kTwoRanks);
  EXPECT_FALSE(std::filesystem::exists(run.directory("plain") + "/trace"));
}

TEST(Traces, EndWithTheRun) {
  const StartedRun run(kSettings);
  EXPECT_HAS(run.train("short", {"log.trace=[4, 90]", "run.max_steps=4"}), "trace of steps 4 to 4: ");
  EXPECT_EQ(TraceFile(run.directory("short") + "/trace/rank-0.json", 0).on("steps").size(), 1u);
  const std::string output = run.train("short", {"log.trace=[1, 2]", "run.max_steps=5"});
  EXPECT_HAS(output, "log.trace = [1, 2], and the run continues after step 4");
}

TEST(Traces, NeedTwoSteps) {
  const StartedRun run(kSettings);
  for (const auto& [value, problem] :
       {std::pair("[3]", "log.trace = [3] has 1 number: expected [first, last]"),
        std::pair("[3, 2]", "the first step 3 is after the last step 2"), std::pair("[0, 2]", "log.trace"),
        std::pair("[6, 7]", "log.trace = [6, 7] begins after the end of the run: run.max_steps = 5")}) {
    const Outcome outcome = run.start("refused", {std::string("log.trace=") + value});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_HAS(outcome.output, problem);
  }
}

}  // namespace
}  // namespace chassis::test
