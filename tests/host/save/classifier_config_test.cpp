// config.json of a model with a head of scores.
#include "host/save/classifier_config.hpp"

#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {
namespace {

// The architectures in the manifest of each plugin.
const std::vector<std::vector<std::string>> kFamilies = {
    {"LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification"},
    {"MistralForCausalLM", "MistralModel", "MistralForSequenceClassification"},
    {"Qwen2ForCausalLM", "Qwen2Model", "Qwen2ForSequenceClassification"},
    {"Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification"},
    {"Gemma2ForCausalLM", "Gemma2Model", "Gemma2ForSequenceClassification"},
    {"Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification"},
    {"Phi3ForCausalLM", "Phi3Model", "Phi3ForSequenceClassification"},
    {"GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"}};

TEST(ClassifierConfig, NamesTheClassifierOfEveryFamily) {
  for (const std::vector<std::string>& family : kFamilies)
    for (const std::string& was : family) {
      Json config = {{"architectures", {was}}, {"hidden_size", 8}};
      make_classifier(config, {1, "regression", {}, 5}, family);
      EXPECT_EQ(config, Json({{"architectures", {family.back()}},
                              {"hidden_size", 8},
                              {"num_labels", 1},
                              {"id2label", {{"0", "LABEL_0"}}},
                              {"label2id", {{"LABEL_0", 0}}},
                              {"problem_type", "regression"},
                              {"pad_token_id", 5}}));
    }
}

TEST(ClassifierConfig, RenamesAnArchitectureOfWhichNoClassifierIsKnown) {
  for (const auto& [was, is] : {std::pair("OlmoForCausalLM", "OlmoForSequenceClassification"),
                                {"OPTLMHeadModel", "OPTForSequenceClassification"},
                                {"FalconModel", "FalconForSequenceClassification"}}) {
    Json config = {{"architectures", {was}}};
    make_classifier(config, {1, "regression"}, std::vector<std::string>{was});
    EXPECT_EQ(config["architectures"], Json::array({is}));
    EXPECT_FALSE(config.contains("pad_token_id"));
  }
}

TEST(ClassifierConfig, IsReadBackAndKeepsTheNamesOfLabels) {
  Json config = {{"architectures", {"LlamaForCausalLM"}}};
  EXPECT_FALSE(head_in_config(config, "x"));
  make_classifier(config, {3, "single_label_classification", {"bad", "good", "neither"}, 7}, kFamilies[0]);
  const Json once = config;
  const std::optional<ScoreHead> head = head_in_config(config, "x");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->labels, (std::vector<std::string>{"bad", "good", "neither"}));
  EXPECT_EQ(head->pad_id, 7);
  make_classifier(config, *head, kFamilies[0]);
  EXPECT_EQ(config, once);
  make_classifier(config, {3, "single_label_classification"}, kFamilies[0]);
  EXPECT_EQ(config, once) << "names and padding that are not given stay";
  make_classifier(config, {1, "regression"}, kFamilies[0]);
  EXPECT_EQ(config["id2label"], Json({{"0", "LABEL_0"}})) << "those of another number of labels do not";
}

TEST(ClassifierConfig, HasTwoLabelsUnlessItSaysMore) {
  const Json config = {{"architectures", {"LlamaForSequenceClassification"}}};
  EXPECT_EQ(head_in_config(config, "x")->num_labels, 2);
  EXPECT_EQ(head_in_config(config, "x")->problem_type, "single_label_classification");
  for (const int64_t count : {int64_t{0}, int64_t{1} << 40})
    EXPECT_HAS(refusal([&] {
                 head_in_config({{"architectures", config["architectures"]}, {"num_labels", count}}, "m/config.json");
               }),
               "m/config.json: num_labels is " + std::to_string(count) + ", expected 1 to 1048576");
}

TEST(ClassifierConfig, OfAnAdapterIsInItsManifest) {
  Json about = {{"model", "llama"}};
  EXPECT_FALSE(head_in_manifest(about, "x"));
  EXPECT_FALSE(head_in_manifest(Json(), "x"));
  add_head(about, {2, "multi_label_classification", {"a", "b"}, 9});
  const ScoreHead head = *head_in_manifest(about, "x");
  EXPECT_EQ(head.num_labels, 2);
  EXPECT_EQ(head.problem_type, "multi_label_classification");
  EXPECT_EQ(head.labels, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(head.pad_id, 9);
  about["score_head"]["num_labels"] = 3;
  EXPECT_HAS(refusal([&] { head_in_manifest(about, "x"); }), "x/manifest.json: score_head has 3 labels and 2 names");
}

TEST(ProblemType, FollowsFromScoresTargetsAndClasses) {
  EXPECT_EQ(problem_type_of(1, 0, 0), "regression");  // rewards of pairs
  EXPECT_EQ(problem_type_of(3, 3, 0), "regression");
  EXPECT_EQ(problem_type_of(2, 1, 2), "single_label_classification");
  EXPECT_EQ(problem_type_of(2, 2, 2), "multi_label_classification");
  EXPECT_EQ(problem_type_of(1, 1, 2), "multi_label_classification");
}

}  // namespace
}  // namespace chassis::test
