// Formats found by the keys of rows, and the text of configurations.
#include "host/command/init/init_config.hpp"

#include <gtest/gtest.h>

#include "host/config/config.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

class InitConfig : public testing::Test {
 protected:
  FoundFormat found(const std::string& text, const std::string& name = "data.jsonl") {
    test::write_text(folder_ / name, text);
    return find_format(folder_ / name);
  }
  test::ScratchDirectory folder_;
};

using Columns = std::map<std::string, std::string>;

TEST_F(InitConfig, FindsTheFormatByTheKeysOfTheFirstRows) {
  const std::pair<const char*, DataFormat> rows[] = {
      {R"({"text": "a"})", DataFormat::kText},
      {R"({"messages": [{"role": "user", "content": "a"}]})", DataFormat::kMessages},
      {R"({"conversations": [{"from": "human", "value": "a"}]})", DataFormat::kShareGpt},
      {R"({"instruction": "a", "input": "", "output": "b"})", DataFormat::kAlpaca},
      {R"({"prompt": "a", "completion": "b"})", DataFormat::kPromptCompletion},
      {R"({"segments": []})", DataFormat::kSegments},
      {R"({"input_ids": [1]})", DataFormat::kTokens},
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", DataFormat::kPreference},
      {R"({"chosen_response": "b", "rejected_response": "c", "instruction": "a"})", DataFormat::kPreference},
      {R"({"prompt": "a", "completion": "b", "label": true})", DataFormat::kLabelled},
      {R"({"prompt": "a", "completion": "b", "label": "0"})", DataFormat::kLabelled},
      {R"({"instruction": "a", "output": "b", "kto_tag": false})", DataFormat::kLabelled},
      {R"({"messages": [{"role": "user", "content": "a"}], "label": true})", DataFormat::kLabelled},
      {R"({"messages": [{"role": "user", "content": "a"}], "label": 1})", DataFormat::kClassification},
      {R"({"messages": [{"role": "user", "content": "a"}], "label": "en"})", DataFormat::kMessages},
      {R"({"text": "a", "label": 1})", DataFormat::kClassification},
      {R"({"text": "a", "label": "sport"})", DataFormat::kClassification},
      {R"({"text": "a", "labels": [0, 1]})", DataFormat::kClassification},
      {R"({"text": "a", "value": 0.5})", DataFormat::kClassification},
      {R"({"prompt": "a", "completion": "b", "label": "de"})", DataFormat::kPromptCompletion},
      {R"({"prompt": "a", "completions": [{"text": "b", "reward": 1}]})", DataFormat::kRollouts},
  };
  for (const auto& [row, format] : rows) {
    EXPECT_EQ(found(row).format, format) << row;
    EXPECT_EQ(found(row).columns, Columns{}) << row;
  }
  EXPECT_EQ(found("a line\n", "lines.txt").format, DataFormat::kText);
  EXPECT_EQ(found("prompt,completion\na,b\n", "table.csv").format, DataFormat::kPromptCompletion);
  EXPECT_EQ(found(R"([{"messages": [{"role": "user", "content": "a"}]}])", "list.json").format, DataFormat::kMessages);
}

TEST_F(InitConfig, OtherNamesOfKeysBecomeColumns) {
  const FoundFormat chats = found(R"({"dialog": [{"role": "user", "content": "a"}]})");
  EXPECT_EQ(chats.format, DataFormat::kMessages);
  EXPECT_EQ(chats.columns, (Columns{{"messages", "dialog"}}));
  EXPECT_EQ(found(R"({"question": "a", "answer": "b"})").columns,
            (Columns{{"prompt", "question"}, {"completion", "answer"}}));
}

TEST_F(InitConfig, TheBetterAnswersOfPairsHaveAFormatOfTheirOwn) {
  const auto better = [&](const char* row) {
    const FoundFormat pairs = found(row);
    EXPECT_EQ(pairs.format, DataFormat::kPreference);
    return pairs.better.value_or(RowFormat{DataFormat::kTokens, {}});
  };
  const char* const lists = R"({"chosen": [{"role": "user", "content": "a"}], "rejected": []})";
  EXPECT_EQ(better(lists).format, DataFormat::kMessages);
  EXPECT_EQ(better(lists).columns, (Columns{{"messages", "chosen"}}));
  const char* const prompts =
      R"({"prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant"}], "rejected": []})";
  EXPECT_EQ(better(prompts).format, DataFormat::kPromptCompletion);
  EXPECT_EQ(better(prompts).columns, (Columns{{"completion", "chosen"}}));
  EXPECT_EQ(better(R"({"prompt": "a", "chosen": "b", "rejected": "c"})").format, DataFormat::kPromptCompletion);
  EXPECT_FALSE(found(R"({"chosen": "a dialog", "rejected": "another"})").better);
}

TEST_F(InitConfig, LabelledAnswersHaveAFormatThatTrainsAll) {
  const FoundFormat texts = found(R"({"prompt": "a", "completion": "b", "label": true})");
  ASSERT_TRUE(texts.better);
  EXPECT_EQ(texts.better->format, DataFormat::kPromptCompletion);
  EXPECT_EQ(texts.better->columns, Columns{});
  const FoundFormat alpaca = found(R"({"instruction": "a", "output": "b", "kto_tag": true})");
  ASSERT_TRUE(alpaca.better);
  EXPECT_EQ(alpaca.better->format, DataFormat::kAlpaca);
}

TEST_F(InitConfig, LabelsAreClassesNamesOrValues) {
  const auto scan = [&](const std::string& rows) {
    test::write_text(folder_ / "labels.jsonl", rows);
    return scan_labels(folder_ / "labels.jsonl", {}, nullptr);
  };
  const LabelScan indices = scan("{\"text\": \"a\", \"label\": 0}\n{\"text\": \"b\", \"label\": 4}\n");
  EXPECT_EQ(indices.kind, "single");
  EXPECT_EQ(indices.num_labels, 5u);
  EXPECT_TRUE(indices.classes.empty());
  EXPECT_TRUE(indices.has_texts);
  EXPECT_EQ(scan("{\"text\": \"a\", \"label\": 0}\n").num_labels, 2u) << "one class is no choice";
  const LabelScan names = scan("{\"text\": \"a\", \"label\": \"pos\"}\n{\"text\": \"b\", \"label\": \"neg\"}\n");
  EXPECT_EQ(names.classes, (std::vector<std::string>{"neg", "pos"}));
  const LabelScan several = scan("{\"prompt\": \"a\", \"labels\": [0, 1, 1]}\n");
  EXPECT_EQ(several.kind, "multi");
  EXPECT_EQ(several.num_labels, 3u);
  EXPECT_FALSE(several.has_texts);
  EXPECT_EQ(scan("{\"text\": \"a\", \"labels\": [\"x\", \"y\"]}\n{\"text\": \"a\", \"labels\": []}\n").num_labels, 2u);
  EXPECT_EQ(scan("{\"text\": \"a\", \"value\": 0.5}\n").kind, "regression");
  EXPECT_EQ(scan("{\"text\": \"a\", \"label\": 2.5}\n").kind, "regression") << "no class has such an index";
  EXPECT_EQ(scan("{\"text\": \"a\", \"values\": [1, null]}\n").num_labels, 2u);
  const auto refused = [&](const std::string& rows, const std::string& message) {
    try {
      scan(rows);
      ADD_FAILURE() << rows;
    } catch (const Error& error) {
      EXPECT_HAS(std::string(error.what()), "labels.jsonl:2");
      EXPECT_HAS(std::string(error.what()), message);
    }
  };
  refused("{\"label\": 0}\n{\"label\": \"x\"}\n", "labels are names in some rows and numbers in others");
  refused("{\"labels\": [1]}\n{\"labels\": [0, 1]}\n", "the row has 2 labels, and those before it 1");
  refused("{\"label\": 0}\n{\"value\": 1}\n", "another sort of label");
}

TEST_F(InitConfig, MethodsAreOneOfEachSort) {
  EXPECT_EQ(method_words("").objective, nullptr);
  EXPECT_EQ(method_words("lora").weights, "lora");
  EXPECT_EQ(method_words("qlora,kto").weights, "qlora");
  EXPECT_EQ(method_words("qlora,kto").objective->name, "kto");
  EXPECT_EQ(method_words("simpo").objective->plugin, "cpo");
  for (const char* wrong : {"dora", "lora,full", "dpo,kto", "dpo,,lora", "DPO"})
    EXPECT_THROW(method_words(wrong), Error) << wrong;
}

// The options of each objective are those of its plugin; `chassis check` would refuse others.
TEST_F(InitConfig, EveryMethodHasAConfiguration) {
  for (const InitMethod& method : init_methods()) {
    for (const char* weights : {"full", "lora"}) {
      InitFacts facts{.model = "m",
                      .data = "rows.jsonl",
                      .output_dir = "out/a",
                      .name = "a",
                      .task = method.task,
                      .method = weights,
                      .objective = &method,
                      .format = {method.format, {}, "its rows"},
                      .num_rows = 600,
                      .longest = 300};
      facts.labels.num_labels = 3;
      facts.labels.classes =
          method.task == Task::kClassify ? std::vector<std::string>{"a", "b", "c"} : std::vector<std::string>{};
      const std::string text = init_toml(facts);
      const Config config = load_config_text(text, "a.toml", {});
      EXPECT_EQ(config.num_problems(), 0u) << text;
      EXPECT_EQ(config.settings().train.task, method.task);
      EXPECT_EQ(config.settings().run.epochs, method.epochs == 1 ? 1 : 3);
      EXPECT_HAS(text, "[objective]\nplugin = \"" + std::string(method.plugin) + "\"\n");
      EXPECT_HAS(text, "\nlr = " + std::string(*weights == 'f' ? method.lr : method.adapter_lr));
      EXPECT_EQ(text.find("num_labels = 3") != std::string::npos, method.name == "classify") << text;
    }
  }
}

TEST_F(InitConfig, RolloutsWithoutLogProbabilitiesAreScoredByTheModel) {
  InitFacts facts{.task = Task::kPolicy, .method = "full", .objective = find_init_method("grpo")};
  facts.format = found(R"({"prompt": "a", "completions": [{"text": "b", "reward": 1, "logps": [-1]}]})");
  EXPECT_HAS(init_toml(facts), "\nclip_low = 0.2\n");
  EXPECT_EQ(init_toml(facts).find("old_logps"), std::string::npos);
  facts.format = found(R"({"prompt": "a", "completions": [{"text": "b", "reward": 1}]})");
  EXPECT_HAS(init_toml(facts), "\nold_logps = \"model\"");
  EXPECT_EQ(init_toml(facts).find("clip_"), std::string::npos) << "all ratios are 1";
}

TEST_F(InitConfig, RowsOfPairsHoldBothAnswers) {
  InitFacts facts{.task = Task::kPreference, .format = {DataFormat::kPreference, {}, ""}, .longest = 1 << 20};
  EXPECT_EQ(seq_len_of(facts), 2 * 4096);
  facts.max_positions = 512;
  EXPECT_EQ(seq_len_of(facts), 2 * 512) << "positions begin again at the second answer";
  facts.format.format = DataFormat::kLabelled;
  EXPECT_EQ(seq_len_of(facts), 2 * 512) << "its mismatch is a second sequence";
  facts.format.format = DataFormat::kMessages;
  EXPECT_EQ(seq_len_of(facts), 512);
}

TEST_F(InitConfig, PairsAreSplitForAMethodOfLabelledAnswers) {
  InitFacts facts{.task = Task::kPreference, .method = "full", .objective = find_init_method("kto")};
  facts.format = found(R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  EXPECT_EQ(init_toml(facts).find("split_pairs"), std::string::npos);
  facts.split_pairs = true;
  EXPECT_HAS(init_toml(facts), "format = \"preference\"");
  EXPECT_HAS(init_toml(facts), "\nsplit_pairs = true");
}

TEST_F(InitConfig, ATextShorterThanManyRowsGetsShorterRows) {
  InitFacts facts{.task = Task::kPretrain, .max_positions = 500, .num_rows = 20, .num_tokens = 2000};
  EXPECT_EQ(seq_len_of(facts), 128);
  facts.num_tokens = 70;
  EXPECT_EQ(seq_len_of(facts), 64);
  facts.is_sample = true;
  EXPECT_EQ(seq_len_of(facts), 500) << "there is more text";
}

TEST_F(InitConfig, RowsAreEvaluatedOnlyIfThereAreMany) {
  InitFacts facts{.task = Task::kSft, .num_files = 3, .num_rows = 499, .longest = 90, .num_tokens = 40000};
  EXPECT_HAS(init_toml(facts), "# eval_fraction = 0.02");
  EXPECT_HAS(init_toml(facts), "499 rows of 3 files");
  facts.num_rows = 500;
  EXPECT_HAS(init_toml(facts), "\neval_fraction = 0.02");
}

TEST_F(InitConfig, RowsLengthsArePowersOfTwoThatTheModelCanDo) {
  InitFacts facts{.task = Task::kSft, .longest = 700};
  EXPECT_EQ(seq_len_of(facts), 1024);
  facts.max_positions = 800;
  EXPECT_EQ(seq_len_of(facts), 800);
  facts.longest = 3;
  EXPECT_EQ(seq_len_of(facts), 256);
  facts = {.task = Task::kSft, .longest = 1 << 20};
  EXPECT_EQ(seq_len_of(facts), 4096);
}

TEST_F(InitConfig, ASmallFileGetsSmallStepsAndAShortWarmUp) {
  InitFacts facts{.task = Task::kSft, .num_rows = 20, .longest = 90, .num_tokens = 1200};
  EXPECT_EQ(steps_of(facts).rows_of_step, 1) << "5 rows of 256 tokens, 3 times";
  EXPECT_EQ(steps_of(facts).num_steps, 15);
  EXPECT_EQ(steps_of(facts).warmup_steps, 1);
  facts.num_rows = 100, facts.num_tokens = 100 * 250;
  EXPECT_EQ(steps_of(facts).rows_of_step, 8);
  EXPECT_EQ(steps_of(facts).warmup_steps, 3) << "of 36 steps";
  facts.is_sample = true;
  EXPECT_EQ(steps_of(facts).warmup_steps, 3) << "there are more rows, perhaps few";
  EXPECT_HAS(init_toml(facts), "more than 36 steps in all");
  EXPECT_HAS(init_toml({.task = Task::kSft, .num_rows = 20, .longest = 90, .num_tokens = 1200}),
             "# rows of one step; about 15 steps in all");
}

TEST_F(InitConfig, TheTextIsAConfiguration) {
  InitFacts facts{.model = "models/o'\"x\\y",
                  .data = "chats.jsonl",
                  .output_dir = "out/chat",
                  .name = "chat",
                  .task = Task::kSft,
                  .format = {DataFormat::kMessages, {{"messages", "the dialog"}}, "its rows have the keys the dialog"},
                  .num_rows = 600,
                  .longest = 300,
                  .data_template = "chatml",
                  .why_template = "the tokenizer has none of its own"};
  for (const bool is_sample : {true, false}) {
    facts.is_sample = is_sample;
    const std::string text = init_toml(facts);
    const Config config = load_config_text(text, "chat.toml", {});
    EXPECT_EQ(config.num_problems(), 0u) << text;
    EXPECT_EQ(*config.settings().model.path, facts.model);
    EXPECT_EQ(*config.settings().data.template_name, "chatml");
    EXPECT_EQ(config.settings().data.eval_fraction, 0.02);
    EXPECT_EQ(config.settings().train.seq_len, 512);
  }
}

}  // namespace
}  // namespace chassis
