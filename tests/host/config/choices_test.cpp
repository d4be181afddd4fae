#include "host/config/choices.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "host/config/config.hpp"
#include "tests/host/config/example.hpp"

namespace chassis {
namespace {

TEST(Choices, AreFoundByTheirNames) {
  EXPECT_EQ(choice_from<Packing>("concat_split"), Packing::kConcatSplit);
  EXPECT_EQ(choice_from<Overflow>("truncate_left_prompt"), Overflow::kTruncateLeftPrompt);
  EXPECT_EQ(choice_from<AsyncSave>("true"), AsyncSave::kOn);
  EXPECT_EQ(choice_from<Packing>("greedy"), std::nullopt);
  EXPECT_EQ(choice_from<Packing>(""), std::nullopt);
  EXPECT_EQ(choice_from<Packing>("best"), std::nullopt);
}

TEST(Choices, HaveTheNamesOfTheConfiguration) {
  EXPECT_EQ(to_text(DataFormat::kPromptCompletion), "prompt_completion");
  EXPECT_EQ(to_text(DocumentSplit::kParagraph), "paragraph");
  EXPECT_EQ(to_text(Overflow::kDrop), "drop");
  EXPECT_EQ(to_text(Reasoning::kStrip), "strip");
  EXPECT_EQ(to_text(CheckpointContents::kModelOnly), "model_only");
  EXPECT_EQ(to_text(AsyncSave::kOff), "false");
  EXPECT_EQ(to_text(Curve::kWsd), "wsd");
}

TEST(Choices, OfTheSchemaAreReadAsEnums) {
  const auto settings = [](const std::string& key, const std::string& value) {
    return load_config_text(kExample, "a.toml", {key + "=" + value});
  };
  EXPECT_EQ(*settings("train.task", "sft").settings().train.task, Task::kSft);
  EXPECT_EQ(*settings("checkpoint.async", "true").settings().checkpoint.async, AsyncSave::kOn);
  EXPECT_EQ(*settings("checkpoint.async", "staged").settings().checkpoint.async, AsyncSave::kStaged);
  EXPECT_EQ(*settings("data.train.0.format", "tokens").settings().data.train[0].format, DataFormat::kTokens);
  EXPECT_EQ(settings("train.task", "dpo").num_problems(), 1u);
  EXPECT_FALSE(settings("run.name", "x").settings().data.packing.is_set());
}

TEST(Choices, OfResumeIsAWordOrAPath) {
  const auto resume = [](const std::string& value) {
    return *load_config_text(kExample, "a.toml", {"run.resume=" + value}).settings().run.resume;
  };
  EXPECT_TRUE(resume("auto") == Resume::kAuto);
  EXPECT_TRUE(resume("never") == Resume::kNever);
  EXPECT_FALSE(resume("out/run").word.has_value());
  EXPECT_EQ(resume("out/run").text, "out/run");
  EXPECT_EQ(resume("never").text, "never");
}

}  // namespace
}  // namespace chassis
