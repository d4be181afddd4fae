// Losses, gradients and metrics as trl computes them, or PyTorch's autograd, from tests/golden/objective/*.json. Each
// file has
//   {"generator": "…", "cases": [{"name", "plugin", "options", "sequences", "state", "loss", "grad_logp", "grad_score",
//    "grad_token_logp", "grad_top_logp", "metrics"}]}
// The sequences are one batch: role ("chosen" or its number), unit, and, if they apply, length, logp, reference_logp,
// target, margin, score; token_logp, reference_token_logp, old_token_logp, teacher_count, teacher_logp and top_logp of
// all answers, sequence by sequence. The loss is Σ term ÷ count. grad_token_logp has the whole gradients of tokens.
// Gradients that are absent or empty, and metrics that are null, are not compared.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/objective_run.hpp"

namespace {

using Json = nlohmann::ordered_json;
using fake::ObjectiveData;
using fake::ObjectiveRun;
using fake::ObjectiveSums;

constexpr double kTolerance = 1e-9;  // both sides compute in fp64

const std::map<std::string, uint32_t> kRoles = {{"answer", CHASSIS_SEQUENCE_ANSWER},
                                                {"chosen", CHASSIS_SEQUENCE_CHOSEN},
                                                {"rejected", CHASSIS_SEQUENCE_REJECTED},
                                                {"mismatch", CHASSIS_SEQUENCE_MISMATCH}};

// Metrics that are no sums over a batch.
const std::set<std::string> kOmitted = {"min_reward", "max_reward", "clip_ratio/low_min", "clip_ratio/high_max"};

bool has(const Json& object, const char* key) { return object.contains(key) && !object.at(key).empty(); }

double number(const Json& value) { return value.is_null() ? std::nan("") : value.get<double>(); }

std::vector<double> flat(const Json& object, const char* key) {
  std::vector<double> out;
  if (!has(object, key)) return out;
  for (const Json& item : object.at(key)) {
    if (!item.is_array()) {
      out.push_back(number(item));
      continue;
    }
    for (const Json& value : item) out.push_back(number(value));
  }
  return out;
}

ObjectiveData data_of(const Json& sequences, const chassis_objective_desc_t& desc) {
  ObjectiveData data;
  for (const Json& role : sequences.at("role"))
    data.role.push_back(role.is_string() ? kRoles.at(role.get<std::string>()) : role.get<uint32_t>());
  data.unit = sequences.at("unit").get<std::vector<uint64_t>>();
  data.length = flat(sequences, "length"), data.logp = flat(sequences, "logp");
  data.reference_logp = flat(sequences, "reference_logp");
  if (desc.num_targets > 0) data.target = flat(sequences, "target");
  data.margin = flat(sequences, "margin"), data.score = flat(sequences, "score");
  data.token_logp = flat(sequences, "token_logp");
  data.reference_token_logp = flat(sequences, "reference_token_logp");
  data.old_token_logp = flat(sequences, "old_token_logp");
  data.teacher_count = flat(sequences, "teacher_count");
  data.teacher_logp = flat(sequences, "teacher_logp"), data.top_logp = flat(sequences, "top_logp");
  for (size_t i = 0; i < data.num_sequences() && !data.token_logp.empty(); ++i)
    data.first_token.push_back(data.first_token.back() + static_cast<uint64_t>(data.length[i]));
  if (data.margin.empty() && desc.units == CHASSIS_OBJECTIVE_PAIRS) data.margin.assign(data.num_sequences(), 0);
  return data;
}

// An option that is a list may be written as its only item.
std::map<std::string, std::string> options_of(const Json& options, const fake::Plugin& plugin) {
  std::set<std::string> lists;
  const chassis_member_t& member = *plugin.factory().member(0);
  for (uint32_t i = 0; i < member.num_options; ++i)
    if (member.options[i].type == CHASSIS_OPTION_STRING_LIST || member.options[i].type == CHASSIS_OPTION_FLOAT_LIST)
      lists.insert(fake::text_of(member.options[i].name));
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : options.items())
    out[name] = (lists.contains(name) && !value.is_array() ? Json::array({value}) : value).dump();
  return out;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = 0;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], kTolerance * scale + 1e-12) << what << " " << i;
}

void check_case(const Json& golden) {
  fake::Host host;
  const std::string id = golden.at("plugin");
  fake::Plugin plugin(host, CHASSIS_TEST_PLUGIN_DIR "/" + id + ".so");
  const ObjectiveRun run(host, plugin, id, options_of(golden.at("options"), plugin));
  ObjectiveData data = data_of(golden.at("sequences"), run.desc);
  run.prepare(data);
  if (has(golden, "state")) expect_near(data.state, flat(golden, "state"), "state");
  const auto weights = run.weights(data);
  const ObjectiveSums found = run.evaluate(data, weights);
  expect_near({ObjectiveRun::loss(found, weights)}, {golden.at("loss").get<double>()}, "loss");
  if (has(golden, "grad_logp")) expect_near(found.grad_logp, flat(golden, "grad_logp"), "grad_logp");
  if (has(golden, "grad_score")) expect_near(found.grad_score, flat(golden, "grad_score"), "grad_score");
  if (has(golden, "grad_token_logp")) {
    std::vector<double> total = found.grad_token_logp;
    for (size_t i = 0; i < data.num_sequences(); ++i)
      for (size_t t = data.first_token[i]; t < data.first_token[i + 1]; ++t) total[t] += found.grad_logp[i];
    expect_near(total, flat(golden, "grad_token_logp"), "gradients of tokens");
  }
  if (has(golden, "grad_top_logp")) expect_near(found.grad_top_logp, flat(golden, "grad_top_logp"), "grad_top_logp");
  if (!has(golden, "metrics")) return;
  const auto metrics = run.metrics(found.sums);
  for (const auto& [name, value] : golden.at("metrics").items()) {
    if (kOmitted.contains(name)) continue;
    ASSERT_TRUE(metrics.contains(name)) << "no metric " << name;
    if (!value.is_null()) {
      EXPECT_NEAR(metrics.at(name), value.get<double>(), kTolerance * std::max(1.0, std::abs(value.get<double>())))
          << name;
    }
  }
}

TEST(GoldenObjectives, AreThoseOfTrlAndAutograd) {
  const std::filesystem::path folder = CHASSIS_TEST_SOURCE_DIR "/tests/golden/objective";
  std::map<std::string, size_t> num_cases;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".json") continue;
      std::ifstream in(entry.path());
      const Json file = Json::parse(in);
      for (const Json& golden : file.at("cases")) {
        SCOPED_TRACE(entry.path().filename().string() + ": " + golden.at("name").get<std::string>());
        EXPECT_NO_THROW(check_case(golden));
        ++num_cases[golden.at("plugin")];
      }
    }
  }
  for (const char* plugin : {"dpo", "distill"})
    EXPECT_GT(num_cases[plugin], 0u) << folder << " has no cases of " << plugin;
}

}  // namespace
