// Runs of several processes send what theory says, and strategies that prefetch gather units early. Both are read from
// the metrics and logs of the runs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <regex>
#include <sstream>

#include "tests/regress/communication_rows.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

// A line of the log: the start of a collective, or of the computation of a unit.
struct TraceLine {
  bool is_unit = false;
  std::string what;  // "all_gather"; "forward"
  std::string name;  // the name of the call or of the unit
  std::string group;
  std::string dtype;
  uint64_t count = 0;
};

struct TracedRun {
  std::vector<TraceLine> second_step;
  Sent sent;               // in the second step, by the metrics; without the fp64 collectives by which ranks agree
  int num_agreements = 0;  // fp64 collectives in the second step
};

TracedRun run_processes(const Row& row, const std::vector<std::string>& more = {}) {
  const ScratchDirectory folder;
  write_text(folder / "run.toml", row.toml());
  std::string tokens;
  for (int i = 0; i < 64; ++i)
    tokens += "{\"input_ids\":[" + std::to_string(i) + ",1,2,3,4,5,6,7,8,9,10,11,12,13,14]}\n";
  write_text(folder / "tokens.jsonl", tokens);
  const int num_processes = row.num_ranks * row.num_replicas;
  std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml", "--nproc", std::to_string(num_processes)};
  for (const auto* overrides : {&row.overrides, &more})
    command.insert(command.end(), overrides->begin(), overrides->end());
  for (const std::string& setting : row.all_overrides()) command.push_back(setting);
  const Outcome outcome = run_process(command, folder.path());
  if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);

  TracedRun run;
  const std::regex call(R"(comm: (\w+) of (\d+) (\w+) '([^']*)' \(#\d+ of ([^)]+)\))"),
      unit(R"(unit: (forward|backward) ([^ ]+)$)");
  std::istringstream log(text_of_file(folder / "run/log.txt"));
  int step = 1;
  Sent agreed;
  for (std::string line; std::getline(log, line) && step <= 2;) {
    std::smatch m;
    TraceLine traced;
    if (std::regex_search(line, m, call))
      traced = {false, m[1], m[4], m[5], m[3], std::stoull(m[2])};
    else if (std::regex_search(line, m, unit))
      traced = {true, m[1], m[2], "", "", 0};
    else
      continue;
    if (step == 2) {
      run.second_step.push_back(traced);
      if (traced.dtype == "f64") {
        Theory::ring(agreed, traced.what + " " + traced.group, traced.count, num_processes, 8);
        ++run.num_agreements;
      }
    }
    if (traced.name == "loss, gradient norm and requests") ++step;
  }
  std::istringstream metrics(text_of_file(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(metrics, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.at("step") != 2) continue;
    const std::regex key("comm/(.+)/(\\w+)_calls");
    for (const auto& [name, value] : record.items()) {
      std::smatch m;
      if (!std::regex_match(name, m, key)) continue;
      const std::string what = m[2].str() + " " + m[1].str();
      Count count{value.get<uint64_t>(), record.at("comm/" + m[1].str() + "/" + m[2].str() + "_bytes").get<uint64_t>()};
      count.calls -= agreed[what].calls, count.bytes -= agreed[what].bytes;
      if (count.calls > 0) run.sent[what] = count;
    }
  }
  return run;
}

TEST(CommunicationOfProcesses, MatchesTheory) {
  for (const char* name : {"ddp_accumulating", "fsdp2_on_2", "fsdp2_tied", "fsdp2_bf16_sums", "hsdp_accumulating",
                           "zero1_accumulating", "zero2_accumulating", "zero3_tied"}) {
    const Row row = row_named(name);
    PlannedRank rank(row.toml(), row.num_ranks * row.num_replicas, 0, row.all_overrides());
    const TracedRun run = run_processes(row);
    EXPECT_EQ(run.sent, row.expected(row.theory(rank.session()))) << name;
    EXPECT_EQ(run.num_agreements, 1) << name << ": loss, norm, stop and save are one collective";
  }
}

// Counts the units that follow another one by whether their gather started before or after the other one computed.
// Units that are still gathered do not count.
struct Ahead {
  int before = 0, after = 0;
};
Ahead gathered_ahead(const std::vector<TraceLine>& trace) {
  Ahead ahead;
  std::map<std::string, size_t> gathered;  // by unit: its last gather
  std::vector<size_t> visits;
  for (size_t i = 0; i < trace.size(); ++i) {
    if (!trace[i].is_unit) {
      if (trace[i].what == "all_gather") gathered[trace[i].name] = i;
      continue;
    }
    const auto own = gathered.extract(trace[i].name);
    if (!visits.empty() && !own.empty() && trace[visits.back()].name != trace[i].name)
      ++(own.mapped() < visits.back() ? ahead.before : ahead.after);
    visits.push_back(i);
  }
  return ahead;
}

// In each of two micro-batches, 4 of 5 units follow another one in forward, and 4 in backward.
TEST(Prefetch, OfFsdp2GathersAUnitBeforeThePreviousOneComputes) {
  Row row = row_named("fsdp2_on_2");
  row.num_microbatches = 2;
  const Ahead without = gathered_ahead(run_processes(row).second_step);
  EXPECT_EQ(without.before, 0);
  EXPECT_EQ(without.after, 2 * 8);
  const Ahead with = gathered_ahead(
      run_processes(row, {"parallel.0.forward_prefetch=1", "parallel.0.backward_prefetch=1"}).second_step);
  EXPECT_EQ(with.before, without.after);
  EXPECT_EQ(with.after, 0);
}

TEST(Prefetch, OfZero3FollowsTheTraceOfTheFirstStep) {
  const Row row = row_named("zero3_prefetching");
  const Ahead without = gathered_ahead(run_processes(row, {"parallel.0.overlap_comm=\"false\""}).second_step);
  EXPECT_EQ(without.before, 0);
  EXPECT_EQ(without.after, 2 * 8);
  const Ahead with = gathered_ahead(run_processes(row, {"parallel.0.stage3_prefetch_bucket_size=40000"}).second_step);
  EXPECT_EQ(with.before, without.after);
  EXPECT_EQ(with.after, 0);
}

}  // namespace
}  // namespace chassis::test
