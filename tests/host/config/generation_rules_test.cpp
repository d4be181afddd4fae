// The rules about [[eval.generate]], and names of sets.
#include <gtest/gtest.h>

#include "tests/host/config/example.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

using Words = std::vector<std::string>;

std::string wrong(Words overrides, ConfigUse use = ConfigUse::kTraining) {
  overrides.insert(overrides.begin(), "eval.generate.0.path=sums.jsonl");
  return what_is_wrong(kExample, overrides, use);
}

TEST(GenerationRules, ASetIsNamedAfterItsFileAndHasDefaults) {
  const Config config = load_whole(load_config_text(
      kExample, "a.toml",
      {"eval.generate.0.path=data/sums.jsonl", "eval.keep_best=sums", "eval.every_steps=10", "eval.patience=2"}));
  const Settings::GenerationSet& set = config.settings().eval.generate[0];
  EXPECT_EQ(*set.name, "sums");
  EXPECT_EQ(*set.score, AnswerScore::kExact);
  EXPECT_EQ(*set.command_timeout_s, 30.0);
  EXPECT_EQ(*set.max_new_tokens, 128);
  EXPECT_FALSE(set.pattern.is_set());
  EXPECT_HAS(config.resolved_toml(), "[[eval.generate]]");
  EXPECT_EQ(what_is_wrong(config.resolved_toml()), "nothing") << "every key is written down";
}

TEST(GenerationRules, NamesAreUniqueAmongAllSetsAndAreFolders) {
  EXPECT_HAS(wrong({"eval.generate.1.path=other/sums.jsonl"}),
             "two evaluation sets are called \"sums\": give eval.generate.1 a name");
  EXPECT_HAS(wrong({"data.eval.0.path=e.txt", "data.eval.0.name=sums"}), "two evaluation sets are called \"sums\"");
  EXPECT_HAS(wrong({"data.eval_fraction=0.1", "eval.generate.0.name=eval"}), "two evaluation sets are called \"eval\"");
  for (const char* name : {"", "..", "a/b"})
    EXPECT_HAS(wrong({"eval.generate.0.name=" + std::string(name)}), "is not a valid folder name");
}

TEST(GenerationRules, TheBestSetIsOneOfBothKinds) {
  const Words more = {"data.eval.0.path=e.txt", "eval.every_steps=5"};
  const auto keep = [&](const std::string& name) {
    Words words = more;
    words.push_back("eval.keep_best=" + name);
    return wrong(words);
  };
  EXPECT_EQ(keep("sums"), "nothing");
  EXPECT_EQ(keep("eval"), "nothing");
  EXPECT_HAS(keep("x"), "eval.keep_best = \"x\" is not an evaluation set: there are \"eval\", \"sums\"");
  EXPECT_HAS(wrong({"eval.keep_best=sums"}), "eval.keep_best = \"sums\" needs eval.every_steps");
}

TEST(GenerationRules, KeysBelongToTheirScore) {
  EXPECT_HAS(wrong({"eval.generate.0.score=exakt"}), "(did you mean \"exact\"?)");
  EXPECT_HAS(wrong({"eval.generate.0.score=regex"}), "eval.generate.0.score = \"regex\" needs eval.generate.0.pattern");
  EXPECT_HAS(wrong({"eval.generate.0.pattern=x"}),
             "eval.generate.0.pattern = \"x\" has no effect with eval.generate.0.score = \"exact\" (it belongs to "
             "\"regex\")");
  EXPECT_HAS(wrong({"eval.generate.0.score=regex", "eval.generate.0.pattern=a("}),
             "is not a regular expression: missing closing parenthesis (at character 3)");
  EXPECT_HAS(wrong({"eval.generate.0.score=regex", "eval.generate.0.pattern=(a)(b)"}), "has 2 groups");
  EXPECT_EQ(wrong({"eval.generate.0.score=regex", "eval.generate.0.pattern=(?:a|b)(c)"}), "nothing");
  EXPECT_HAS(wrong({"eval.generate.0.score=command"}),
             "eval.generate.0.score = \"command\" needs eval.generate.0.command");
  EXPECT_HAS(wrong({"eval.generate.0.command=judge"}), "(it belongs to \"command\")");
  EXPECT_HAS(wrong({"eval.generate.0.command_timeout_s=5"}), "(it belongs to \"command\")");
  EXPECT_HAS(what_is_wrong(kExample + "[[eval.generate]]\nname = \"x\"\n"), "eval.generate.0.path is missing");
}

TEST(GenerationRules, RowsNeedATokenizer) {
  EXPECT_HAS(wrong({"tokenizer.plugin=", "data.train.0.format=tokens"}),
             "the rows of eval.generate.0 are texts, which need a tokenizer");
}

TEST(GenerationRules, ATemplateHasAnEffectWithThemInEveryTask) {
  EXPECT_HAS(what_is_wrong(kExample, {"data.template=chatml"}), "has no effect with train.task = \"pretrain\"");
  EXPECT_EQ(wrong({"data.template=chatml"}), "nothing");
  EXPECT_HAS(wrong({"data.train_on_prompt=true"}), "has no effect with train.task = \"pretrain\"");
}

TEST(GenerationRules, TheyAreEnoughToEvaluate) {
  EXPECT_EQ(wrong({"eval.every_steps=5"}), "nothing");
  EXPECT_EQ(wrong({}, ConfigUse::kEvaluation), "nothing");
  EXPECT_HAS(wrong({"eval.max_batches=5"}), "eval.max_batches = 5, but there is no [[data.eval]]");
}

}  // namespace
}  // namespace chassis
