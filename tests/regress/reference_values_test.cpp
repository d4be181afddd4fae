// A reference that is computed before training gives the numbers of one that is computed in each step, and what is kept
// of it is used for the same data and the same model alone.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>

#include "tests/regress/objective_results.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr const char* kPrecompute = "reference.mode=precompute";
// Rows of one unit, so that every pass over the data has the same micro-batches.
const Words kSingle = {"train.micro_batch_size=1", "data.packing=none"};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<fs::path> kept_files(const ObjectiveRun& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run.folder() / "cache"))
    if (entry.path().filename().string().find(".reference-") != std::string::npos) files.push_back(entry.path());
  return files;
}

// A new run; returns its output.
std::string start(ObjectiveRun& run, const Words& overrides) {
  fs::remove_all(run.folder() / "run");
  return run.train({}, 1, overrides);
}

class SameRows : public testing::TestWithParam<const char*> {};

TEST_P(SameRows, GiveTheBitsOfAReferenceInEachStep) {
  ObjectiveRun run(method(GetParam()));
  const ObjectiveRun::Result wanted = run({}, 1, kSingle);
  const ObjectiveRun::Result got = run({}, 1, with(kSingle, {kPrecompute}));
  EXPECT_EQ(kept_files(run).size(), 1u);  // the data of training and of evaluation are the same
  ASSERT_EQ(got.steps.size(), wanted.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) EXPECT_EQ(got.steps[i].at("loss"), wanted.steps[i].at("loss")) << i;
  ASSERT_EQ(got.evaluations.size(), wanted.evaluations.size());
  for (size_t i = 0; i < got.evaluations.size(); ++i)
    EXPECT_EQ(got.evaluations[i].at("eval_loss"), wanted.evaluations[i].at("eval_loss")) << i;
  EXPECT_EQ(got.tensors, wanted.tensors);
}
INSTANTIATE_TEST_SUITE_P(Methods, SameRows, testing::Values("dpo", "dpo_lora", "kto", "policy"));

struct Division {
  const char* method;
  const char* name;
  std::vector<std::string> parallel;
  Words overrides;
  friend void PrintTo(const Division& division, std::ostream* out) { *out << division.method << division.name; }
};

class Divided : public testing::TestWithParam<Division> {};

TEST_P(Divided, GivesTheNumbersOfOneProcess) {
  const Division& division = GetParam();
  ObjectiveRun run(method(division.method));
  const ObjectiveRun::Result wanted = run({}, 1, {"train.micro_batch_size=12"});
  expect_same(run(division.parallel, 2, with(division.overrides, {kPrecompute})), wanted);
}
INSTANTIATE_TEST_SUITE_P(
    OnTwo, Divided,
    testing::Values(Division{"dpo_saved_module", "Fsdp2", {"plugin = \"fsdp2\""}, {"train.micro_batch_size=2"}},
                    Division{
                        "dpo_aot", "Pipeline", {"plugin = \"pipeline\""}, {"mesh.pp=2", "train.micro_batch_size=3"}},
                    Division{"policy", "Tensor", {"plugin = \"tensor\""}, {"mesh.tp=2", "train.micro_batch_size=1"}}),
    [](const auto& row) { return std::string(row.param.method) + "_" + row.param.name; });

TEST(ReferenceValues, OfTheFirstStepAreThoseOfTheModel) {
  ObjectiveRun run(method("dpo"));
  run.replace("sft_weight = 0.5\n", "");
  const auto first = run({}, 1, with(kSingle, {kPrecompute})).steps.front();
  EXPECT_NEAR(first.at("loss"), std::numbers::ln2, 1e-6);
  EXPECT_NEAR(first.at("rewards/margins"), 0, 1e-4);
}

TEST(ReferenceValues, AreReadByTheNextRun) {
  ObjectiveRun run(method("dpo"));
  const Words overrides = with(kSingle, {kPrecompute});
  EXPECT_HAS(start(run, overrides), "reference: 17 units of rows.jsonl computed in ");
  const ObjectiveRun::Result first = run.result();
  const std::string second = start(run, overrides);
  EXPECT_HAS(second, "reference: 17 units of rows.jsonl from cache/rows.jsonl-");
  EXPECT_EQ(second.find("computed in"), std::string::npos) << second;
  EXPECT_EQ(run.result().tensors, first.tensors);
  // Another division of the batch, packing and number of ranks need no other values.
  EXPECT_HAS(run.train({"plugin = \"ddp\""}, 2,
                       {kPrecompute, "run.output_dir=other", "run.max_steps=5", "train.micro_batch_size=2"}),
             "reference: 17 units of rows.jsonl from ");
}

TEST(ReferenceValues, OfAnotherModelOrOtherDataAreComputedAgain) {
  ObjectiveRun run(method("dpo"));
  const Words overrides = with(kSingle, {kPrecompute, "run.max_steps=1"});
  start(run, overrides);
  const std::string other_seed = start(run, with(overrides, {"run.seed=6"}));
  EXPECT_HAS(other_seed, "the reference of rows.jsonl is computed again, since its key is ");
  EXPECT_HAS(other_seed, "seed changed from 5 to 6");
  EXPECT_EQ(kept_files(run).size(), 2u);
  EXPECT_HAS(start(run, with(overrides, {"attention.plugin=naive"})), "computed in ");
  std::ofstream(run.folder() / "rows.jsonl", std::ios::app)
      << "{\"prompt\": \"red?\", \"chosen\": \"two\", \"rejected\": \"no\"}\n";
  const std::string other_data = start(run, overrides);
  EXPECT_HAS(other_data, "reference: 18 units of rows.jsonl computed in ");
  EXPECT_HAS(other_data, "ids changed from ");
  EXPECT_EQ(kept_files(run).size(), 3u);  // the newest
}

TEST(ReferenceValues, ThatAreDamagedAreComputedAgain) {
  ObjectiveRun run(method("dpo"));
  const Words overrides = with(kSingle, {kPrecompute});
  start(run, overrides);
  const ObjectiveRun::Result whole = run.result();
  const fs::path file = kept_files(run).at(0);
  std::string bytes = text_of_file(file);
  bytes[bytes.size() - 40] ^= 1;
  write_text(file, bytes);
  const std::string again = start(run, overrides);
  EXPECT_HAS(again, "the reference of rows.jsonl is computed again: ");
  EXPECT_HAS(again, " is damaged: the block at byte ");
  EXPECT_EQ(run.result().tensors, whole.tensors);
}

TEST(ReferenceValues, OfAnInterruptedRunAreContinued) {
  ObjectiveRun run(method("dpo"));
  const Words overrides = with(kSingle, {kPrecompute});
  start(run, overrides);
  const ObjectiveRun::Result whole = run.result();
  const fs::path file = kept_files(run).at(0);
  // After the magic, a block of the header, and the first block of values.
  const std::string bytes = text_of_file(file);
  size_t end = 8;
  for (int block = 0; block < 2; ++block) {
    uint32_t num_bytes = 0;
    std::memcpy(&num_bytes, bytes.data() + end, sizeof num_bytes);
    end += 8 + num_bytes;
  }
  fs::remove(file);
  write_text(file.string() + ".unfinished", bytes.substr(0, end));
  EXPECT_HAS(start(run, overrides), "after 1 of 2 blocks of an interrupted run");
  EXPECT_EQ(text_of_file(file), bytes);
  EXPECT_EQ(run.result().tensors, whole.tensors);
}

TEST(ReferenceValues, SurviveAResume) {
  ObjectiveRun run(method("dpo"));
  const Words overrides = with(kSingle, {kPrecompute});
  const ObjectiveRun::Result whole = run({}, 1, overrides);
  start(run, with(overrides, {"run.max_steps=2"}));
  EXPECT_HAS(run.train({}, 1, overrides), "reference: 17 units of rows.jsonl from ");
  const ObjectiveRun::Result parts = run.result();
  EXPECT_EQ(parts.tensors, whole.tensors);
  EXPECT_EQ(parts.steps.back().at("loss"), whole.steps.back().at("loss"));
}

TEST(ReferenceValues, OfAChangedModelAreReportedByAResume) {
  ObjectiveRun run(method("dpo_lora"));
  const Words overrides = with(kSingle, {kPrecompute});
  start(run, with(overrides, {"run.max_steps=2"}));
  for (const auto& entry : fs::directory_iterator(run.folder() / "base"))
    if (entry.path().extension() == ".safetensors")
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_HAS(run.train({}, 1, overrides), "was compared with a reference of key ");
}

TEST(ReferenceValues, OfAnEvaluationAreThoseOfTheModelBeforeTraining) {
  ObjectiveRun run(method("dpo"));
  start(run, kSingle);
  const auto evaluated = [&](const Words& more) {
    const Outcome outcome =
        run_process(with({CHASSIS_PROGRAM, "eval", "run.toml"}, with(kSingle, more)), run.folder().path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const size_t at = outcome.output.find("eval loss ");
    return at == std::string::npos ? outcome.output : outcome.output.substr(at, outcome.output.find('\n', at) - at);
  };
  EXPECT_EQ(evaluated({kPrecompute}), evaluated({}));
}

TEST(ReferenceValues, NeedNoCopyInThePlan) {
  ObjectiveRun run(method("dpo"));
  start(run, with(kSingle, {"run.max_steps=1"}));
  const auto plan = [&](const Words& more) {
    const Outcome outcome =
        run_process(with({CHASSIS_PROGRAM, "plan", "run.toml", "--json"}, with(kSingle, more)), run.folder().path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
  };
  const auto online = plan({}), precomputed = plan({kPrecompute});
  const auto bytes = [](const nlohmann::json& json) {
    return json["ranks"][0]["step"]["categories"]["parameters"]["peak"].get<double>();
  };
  const double copy = 4 * online["parameters"].get<double>();
  EXPECT_NEAR(bytes(online) - bytes(precomputed), copy, 0.01 * copy);
}

TEST(ReferenceValues, NeedAnObjectiveThatComparesWithThem) {
  ObjectiveRun run(method("orpo"));
  const Outcome outcome = run.attempt({}, 1, {kPrecompute});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_HAS(outcome.output, "reference.mode has no effect: objective 'orpo' compares with no reference");
}

}  // namespace
}  // namespace chassis::test
