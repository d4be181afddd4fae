// Keys of [data] against the task.
#include <gtest/gtest.h>

#include "tests/host/config/example.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

TEST(DataTask, KeysOfConversationsNeedSft) {
  EXPECT_HAS(what_is_wrong(kExample, {"data.template=chatml"}),
             "data.template = \"chatml\" has no effect with train.task = \"pretrain\", whose rows are documents");
  EXPECT_EQ(what_is_wrong(kExample, {"data.template=chatml", "train.task=sft"}), "nothing");
  for (const char* key :
       {"data.template_variables={a=1}", "data.template_date=2024-07-26", "data.default_system=x",
        "data.roles_to_train=user", "data.train_on_prompt=true", "data.last_turn_only=true", "data.reasoning=keep"})
    EXPECT_HAS(what_is_wrong(kExample, {key}), "has no effect with train.task = \"pretrain\"");
}

TEST(DataTask, ADefaultThatIsWrittenOutIsNoMistake) {
  EXPECT_EQ(what_is_wrong(kExample, {"data.template=auto", "data.roles_to_train=[\"assistant\"]",
                                     "data.template_variables={}", "data.train_on_prompt=false"}),
            "nothing");
}

TEST(DataTask, FormatsOfConversationsNeedSft) {
  EXPECT_HAS(
      what_is_wrong(kExample, {"data.train.0.format=messages"}),
      "data.train.0.format = \"messages\" does not fit train.task = \"pretrain\", whose rows have format \"text\" or "
      "\"tokens\"");
  EXPECT_EQ(what_is_wrong(kExample, {"data.train.0.format=messages", "train.task=sft"}), "nothing");
  EXPECT_EQ(what_is_wrong(kExample, {"train.task=sft"}), "nothing") << "text: every token is trained";
}

TEST(DataTask, GenerationMayHaveConversationsWithAnyTask) {
  EXPECT_EQ(what_is_wrong(kExample, {"data.template=chatml"}, ConfigUse::kGeneration), "nothing");
}

TEST(DataTask, TrainOnPromptContradictsWhatChoosesMessages) {
  EXPECT_HAS(what_is_wrong(kExample, {"train.task=sft", "data.train_on_prompt=true", "data.last_turn_only=true"}),
             "data.last_turn_only = true has no effect with data.train_on_prompt = true");
}

TEST(DataTask, OverflowNeedsAPackingThatKeepsDocumentsWhole) {
  EXPECT_HAS(what_is_wrong(kExample, {"data.overflow=drop"}),
             "data.overflow = \"drop\" has no effect with data.packing = \"concat_split\" (the default), which splits");
  EXPECT_HAS(what_is_wrong(kExample, {"data.overflow=drop", "data.packing=concat_split", "train.task=sft"}),
             "data.overflow = \"drop\" has no effect with data.packing = \"concat_split\", which splits");
  EXPECT_EQ(what_is_wrong(kExample, {"data.overflow=drop", "data.packing=none"}), "nothing");
  EXPECT_EQ(what_is_wrong(kExample, {"data.overflow=drop", "train.task=sft"}), "nothing");
  EXPECT_HAS(what_is_wrong(kExample, {"data.overflow=truncate_left_prompt", "data.packing=none"}),
             "has no effect with train.task = \"pretrain\", whose rows have no prompts");
}

TEST(DataTask, FormatsOfObjectivesNeedTheirTask) {
  EXPECT_HAS(what_is_wrong(kExample, {"data.train.0.format=preference", "train.task=sft"}),
             "hint: set the format, or train.task = \"preference\" or \"reward\"");
  EXPECT_HAS(what_is_wrong(kExample, {"data.train.0.format=labelled", "train.task=reward"}), "does not fit");
  EXPECT_HAS(what_is_wrong(kExample, {"data.train.0.format=rollouts", "train.task=classify"}), "does not fit");
}

TEST(DataTask, AReferenceNeedsAnObjective) {
  EXPECT_HAS(what_is_wrong(kExample, {"reference.mode=precompute"}), "has no effect with train.task = \"pretrain\"");
  EXPECT_HAS(what_is_wrong(kExample, {"reference.mode=cached"}), "is not \"online\" or \"precompute\"");
}

TEST(DataTask, OnlyPairsCanBeSplit) {
  EXPECT_EQ(what_is_wrong(kExample,
                          {"train.task=preference", "data.train.0.format=preference", "data.train.0.split_pairs=true"}),
            "nothing");
  EXPECT_HAS(what_is_wrong(kExample,
                           {"train.task=preference", "data.train.0.format=labelled", "data.train.0.split_pairs=true"}),
             "data.train.0.split_pairs = true has no effect with data.train.0.format = \"labelled\"");
}

TEST(DataTask, NamesOfClassesNeedClassify) {
  const std::vector<std::string> classify = {"train.task=classify", "data.train.0.format=classification"};
  const auto with = [&](const std::string& classes) {
    std::vector<std::string> words = classify;
    words.push_back(classes);
    return what_is_wrong(kExample, words);
  };
  EXPECT_EQ(with("data.classes=[\"a\", \"b\"]"), "nothing");
  EXPECT_HAS(with("data.classes=[\"a\", \"b\", \"a\"]"), "data.classes names \"a\" twice");
  EXPECT_HAS(what_is_wrong(kExample, {"data.classes=[\"a\"]"}), "has no effect with train.task = \"pretrain\"");
}

TEST(DataTask, AnObjectiveKeepsSequencesWhole) {
  const auto wrong = [](const char* task, const char* format, const char* key) {
    return what_is_wrong(kExample,
                         {std::string("train.task=") + task, std::string("data.train.0.format=") + format, key});
  };
  EXPECT_HAS(wrong("preference", "preference", "data.packing=concat_split"),
             "data.packing = \"concat_split\" would divide the sequences that train.task = \"preference\" compares");
  EXPECT_HAS(wrong("reward", "preference", "data.overflow=truncate"),
             "data.overflow = \"truncate\" would cut the answers that train.task = \"reward\" compares");
  EXPECT_EQ(wrong("classify", "classification", "data.overflow=truncate"), "nothing");
}

}  // namespace
}  // namespace chassis
