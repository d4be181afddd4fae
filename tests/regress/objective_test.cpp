// Objectives give the numbers of one process under every strategy, for any division into micro-batches and rows, and
// after a resume. The first step compares a model with its own reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numbers>

#include "tests/regress/objective_results.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

struct Stack {
  const char* name;
  int ranks;
  std::vector<std::string> parallel;
  std::vector<std::string> overrides = {};
};

const std::vector<Stack>& stacks() {
  static const std::vector<Stack> all = {
      {"accumulation", 1, {}, {"train.micro_batch_size=1"}},
      {"ddp_on_3", 3, {"plugin = \"ddp\""}},
      {"fsdp2_on_2", 2, {"plugin = \"fsdp2\""}},
      {"zero1_on_2", 2, {"plugin = \"zero\"", "stage = 1"}},
      {"zero3_on_3", 3, {"plugin = \"zero\"", "stage = 3"}},
      {"tensor_on_2", 2, {"plugin = \"tensor\""}, {"mesh.tp=2"}},
      {"sequence_on_2", 2, {"plugin = \"tensor\"", "sequence_parallel = true"}, {"mesh.tp=2"}},
      {"context_ring_on_2", 2, {"plugin = \"context\"", "mode = \"ring\""}, {"mesh.cp=2"}},
      {"context_all_to_all_on_2", 2, {"plugin = \"context\"", "mode = \"all_to_all\""}, {"mesh.cp=2"}},
      {"context_gather_on_2", 2, {"plugin = \"context\"", "mode = \"gather\""}, {"mesh.cp=2"}},
      {"pipeline_on_2", 2, {"plugin = \"pipeline\""}, {"mesh.pp=2", "train.micro_batch_size=3"}},
      {"tensor_fsdp2_on_4", 4, {"plugin = \"tensor\"", "[[parallel]]", "plugin = \"fsdp2\""}, {"mesh.tp=2"}},
      {"pipeline_fsdp2_on_4",
       4,
       {"plugin = \"pipeline\"", "[[parallel]]", "plugin = \"fsdp2\""},
       {"mesh.pp=2", "train.micro_batch_size=3"}},
  };
  return all;
}

struct Row {
  const Method* method;
  const Stack* stack;
  std::string name() const { return std::string(method->name) + "_" + stack->name; }
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name(); }
};

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const Method& method : methods())
    for (const Stack& stack : stacks()) rows.push_back({&method, &stack});
  return rows;
}
// Each stack once, with the methods in turn.
std::vector<Row> some_rows() {
  std::vector<Row> rows;
  for (size_t i = 0; i < stacks().size(); ++i) rows.push_back({&methods()[i % methods().size()], &stacks()[i]});
  return rows;
}

class Objective : public testing::TestWithParam<Row> {};

TEST_P(Objective, GivesTheNumbersOfOneProcess) {
  const auto& [method, stack] = GetParam();
  ObjectiveRun run(*method);
  const std::string whole = "train.micro_batch_size=12";
  const ObjectiveRun::Result wanted = run({}, 1, {whole});
  std::vector<std::string> overrides = stack->overrides;
  if (std::ranges::none_of(overrides, [](const std::string& o) { return o.starts_with("train.micro_batch_size"); }))
    overrides.push_back("train.micro_batch_size=1");
  expect_same(run(stack->parallel, stack->ranks, overrides), wanted);
}

std::string name_of(const testing::TestParamInfo<Row>& row) { return row.param.name(); }
INSTANTIATE_TEST_SUITE_P(Some, Objective, testing::ValuesIn(some_rows()), name_of);
INSTANTIATE_TEST_SUITE_P(Matrix, Objective, testing::ValuesIn(all_rows()), name_of);

// Before the first step the model is its own reference: the loss is known, and rewards are 0.
TEST(ObjectiveStart, TheFirstStepComparesAModelWithItself) {
  for (const char* name : {"dpo_lora", "dpo_saved_module"}) {
    SCOPED_TRACE(name);
    ObjectiveRun run(method(name));
    if (std::string(name) == "dpo_saved_module") run.replace("loss = [\"ipo\"]\n", "");
    const auto first = run({}, 1, {"train.micro_batch_size=4"}).steps.front();
    EXPECT_NEAR(first.at("loss"), std::numbers::ln2, 1e-12);
    EXPECT_EQ(first.at("rewards/chosen"), 0);
    EXPECT_EQ(first.at("rewards/margins"), 0);
  }
}

TEST(ObjectiveResume, ContinuesBitForBit) {
  for (const char* name : {"dpo", "dpo_lora", "kto", "reward_lora"}) {
    SCOPED_TRACE(name);
    ObjectiveRun run(method(name));
    const std::vector<std::string> parallel = {"plugin = \"fsdp2\""};
    const ObjectiveRun::Result whole = run(parallel, 2, {"train.micro_batch_size=1"});
    std::filesystem::remove_all(run.folder() / "run");
    run.train(parallel, 2, {"train.micro_batch_size=1", "run.max_steps=2"});
    run.train(parallel, 2, {"train.micro_batch_size=1"});
    const ObjectiveRun::Result parts = run.result();
    EXPECT_EQ(parts.tensors, whole.tensors);
    EXPECT_EQ(parts.steps.back().at("loss"), whole.steps.back().at("loss"));
  }
}

// One step over the same rows: several units in a row of the batch, or one; their number in a micro-batch differs.
TEST(ObjectiveRows, ThePackingDoesNotMatter) {
  for (const char* name : {"dpo", "dpo_aot", "kto", "reward", "classify"}) {
    SCOPED_TRACE(name);
    ObjectiveRun run(method(name));
    const std::vector<std::string> all = {"run.max_steps=1", "data.shuffle=false", "train.global_batch_size=17"};
    const auto result_of = [&](std::vector<std::string> overrides) {
      overrides.insert(overrides.end(), all.begin(), all.end());
      std::filesystem::remove_all(run.folder() / "run");
      run.train({}, 1, overrides);
      return run.result(1);
    };
    const auto wanted = result_of({"data.packing=none", "train.micro_batch_size=17"});
    for (const char* seq_len : {"train.seq_len=256", "train.seq_len=1024"}) {
      const auto got = result_of({"data.packing=none", "train.micro_batch_size=1", seq_len});
      EXPECT_NEAR(got.steps[0].at("loss"), wanted.steps[0].at("loss"), kTolerance);
      for (const auto& [tensor, values] : wanted.tensors)
        EXPECT_LE(distance(got.tensors.at(tensor), values), kTolerance) << tensor;
    }
    std::filesystem::remove_all(run.folder() / "run");
    run.train({}, 1, {"run.max_steps=1", "data.shuffle=false", "train.seq_len=8192", "train.global_batch_size=1"});
    const auto packed = run.result(1);
    EXPECT_NEAR(packed.steps[0].at("loss"), wanted.steps[0].at("loss"), kTolerance);
    for (const auto& [tensor, values] : wanted.tensors)
      EXPECT_LE(distance(packed.tensors.at(tensor), values), kTolerance) << tensor;
  }
}

// Pairs that are split train as their answers do in a file of labelled answers, but for the order of the rows and the
// mismatches: without both, to the last bit.
TEST(ObjectiveRows, SplitPairsAreLabelledAnswers) {
  const std::vector<std::string> options = {"objective.loss=apo_zero_unpaired", "data.shuffle=false",
                                            "train.micro_batch_size=3"};
  const Method pairs{"kto_pairs", "preference", "plugin = \"kto\"\n", "preference"};
  ObjectiveRun split(pairs), labelled(method("kto"));
  std::vector<std::string> with_key = options;
  with_key.insert(with_key.end(), {"data.train.0.split_pairs=true", "data.eval.0.split_pairs=true"});
  const ObjectiveRun::Result got = split({}, 1, with_key);
  std::istringstream rows(text_of_file(split.folder() / "rows.jsonl"));
  std::string text;
  for (std::string line; std::getline(rows, line);) {
    const auto row = nlohmann::json::parse(line);
    for (const bool is_good : {true, false})
      text +=
          nlohmann::json{
              {"prompt", row["prompt"]}, {"completion", row[is_good ? "chosen" : "rejected"]}, {"label", is_good}}
              .dump() +
          "\n";
  }
  write_text(labelled.folder() / "rows.jsonl", text);
  const ObjectiveRun::Result wanted = labelled({}, 1, options);
  EXPECT_EQ(got.tensors, wanted.tensors);
  EXPECT_EQ(got.steps.back().at("loss"), wanted.steps.back().at("loss"));
  split({}, 1, {"data.train.0.split_pairs=true", "data.eval.0.split_pairs=true"});  // with mismatches
}

// Changes of the options change the run, so that none is read and then forgotten.
TEST(ObjectiveOptions, HaveAnEffect) {
  ObjectiveRun run(method("dpo"));
  const double loss = run({}, 1, {"train.micro_batch_size=4"}).steps.back().at("loss");
  for (const char* option : {"objective.beta=0.1", "objective.sft_weight=0.25", "objective.label_smoothing=0.2",
                             "objective.loss=[\"robust\"]", "objective.loss=[\"hinge\"]"}) {
    if (std::string(option).find("robust") != std::string::npos) continue;
    EXPECT_NE(run({}, 1, {"train.micro_batch_size=4", option}).steps.back().at("loss"), loss) << option;
  }
}

std::string refusal_of(const char* name, const std::vector<std::string>& overrides) {
  ObjectiveRun run(method(name));
  const Outcome outcome = run.attempt({}, 1, overrides);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  return outcome.output;
}

TEST(ObjectiveRefusals, NameTheKeys) {
  EXPECT_HAS(refusal_of("orpo", {"reference.path=run"}), "reference.path has no effect");
  EXPECT_HAS(refusal_of("dpo", {"data.packing=concat_split"}), "would divide the sequences");
  EXPECT_HAS(refusal_of("reward_lora", {"objective.plugin=dpo"}), "log-probabilities of tokens");
  EXPECT_HAS(refusal_of("dpo", {"data.train.0.format=labelled", "data.eval.0.format=labelled"}),
             "takes rows of format \"preference\"");
  EXPECT_HAS(refusal_of("kto", {"data.train.0.format=preference", "data.eval.0.format=preference"}),
             "hint: data.train.0.split_pairs = true makes each chosen answer a good one");
  EXPECT_HAS(refusal_of("dpo", {"data.eval.0.split_pairs=true"}),
             "data.eval.0.split_pairs = true, but objective 'dpo' compares the two answers of a pair");
  EXPECT_HAS(refusal_of("dpo", {"eval.metric=rewards/acuracies", "eval.keep_best=eval", "eval.every_steps=2"}),
             "is not a metric of objective 'dpo'");
  EXPECT_HAS(refusal_of("dpo_lora", {"adapter.dropout=0.1"}), "set its probability (adapter.dropout) to 0");
}

// `check` refuses the references that `train` refuses.
TEST(ObjectiveRefusals, OfTheReferenceAreFoundByCheck) {
  ObjectiveRun run(method("dpo_lora"));
  run.train();  // writes run.toml
  const auto check = [&](const std::string& override) {
    return run_process({CHASSIS_PROGRAM, "check", "run.toml", override}, run.folder().path());
  };
  EXPECT_EQ(check("adapter.dropout=0.0").exit_code, 0) << check("adapter.dropout=0.0").output;
  EXPECT_NE(check("adapter.dropout=0.1").exit_code, 0);
  EXPECT_HAS(check("adapter.dropout=0.1").output, "set its probability (adapter.dropout) to 0");
  EXPECT_NE(check("reference.path=nowhere").exit_code, 0);
  EXPECT_HAS(check("reference.path=nowhere").output, "reference.path = nowhere has no weights for this model");
}

// The scores of rows are those of one process under a strategy, and those that pairs have in an evaluation.
TEST(ObjectiveScores, AreWrittenRowByRow) {
  ObjectiveRun run(method("reward"));
  run.train({}, 1, {"train.micro_batch_size=4"});
  write_text(run.folder() / "answers.jsonl",
             "{\"prompt\": \"red?\", \"completion\": \"two lamp\"}\n"
             "{\"prompt\": \"sea?\", \"completion\": \"no\"}\n"
             "{\"text\": \"winter of tea\"}\n");
  const auto scores = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {CHASSIS_PROGRAM, "score", "run.toml", "train.micro_batch_size=2"};
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--rows", "answers.jsonl", "--out", "scores.jsonl"});
    const Outcome outcome = run_process(command, run.folder().path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<double> values;
    std::istringstream lines(text_of_file(run.folder() / "scores.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      EXPECT_EQ(json.at("line"), values.size() + 1);
      values.push_back(json.at("score"));
    }
    return values;
  };
  const std::vector<double> alone = scores({});
  ASSERT_EQ(alone.size(), 3u);
  EXPECT_NE(alone[0], alone[1]);
  write_text(run.folder() / "run.toml",
             text_of_file(run.folder() / "run.toml") + "[[parallel]]\nplugin = \"tensor\"\n");
  const std::vector<double> divided = scores({"mesh.tp=2", "--nproc", "2"});
  ASSERT_EQ(divided.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(divided[i], alone[i], 1e-5);
}

TEST(ObjectiveBest, FollowsAMetric) {
  ObjectiveRun run(method("reward"));
  const std::string output = run.train(
      {}, 1, {"train.micro_batch_size=4", "eval.metric=accuracy", "eval.keep_best=eval", "eval.every_steps=1"});
  EXPECT_TRUE(std::filesystem::exists(run.folder() / "run/best"));
  EXPECT_HAS(output, "accuracy");
}

}  // namespace
}  // namespace chassis::test
