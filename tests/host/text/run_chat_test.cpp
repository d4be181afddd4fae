// From the settings of [data] to a template, and mistakes in them.
#include "host/text/run_chat.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "host/config/config.hpp"
#include "host/data/slot_template.hpp"
#include "tests/host/data/chat_support.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

class RunChat : public testing::Test {
 protected:
  ChatConfig config(const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"train.task=sft", "train.seq_len=8", "model.path=" + folder_.path()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Config loaded = load_config_text("", "a.toml", all, ConfigUse::kEvaluation);
    return chat_config(loaded.settings(), &tokenizer_);
  }
  std::string refusal(const std::vector<std::string>& overrides) {
    return error_of([&] { config(overrides); });
  }
  TempFolder folder_;
  ChatTokenizer tokenizer_;
};

TEST_F(RunChat, TheTokenizersTemplateIsTheDefault) {
  const ChatConfig chat = config({});
  EXPECT_EQ(chat.slots, nullptr);
  EXPECT_EQ(chat.template_text, "");
  EXPECT_EQ(chat.fitting_slots, (std::vector<std::string>{"alpaca", "chatml", "deepseek", "mistral", "plain"}));
}

TEST_F(RunChat, ATemplateIsANameOrAFile) {
  EXPECT_EQ(config({"data.template=chatml"}).slots->name, "chatml");
  const std::string text = "user = \"{{content}}\"\nassistant = \"{{content}}\"\nstop = [\"{{eos}}\"]\n";
  EXPECT_EQ(config({"data.template=" + folder_.write("my.toml", text)}).slots->name, folder_.path() + "/my.toml");
  EXPECT_EQ(config({"data.template=" + folder_.write("my.jinja", "{{ messages }}")}).template_text, "{{ messages }}");
}

TEST_F(RunChat, MistakesNameTheKeyOrTheLine) {
  EXPECT_HAS(refusal({"data.template=chatm"}), "data.template = \"chatm\" is none of \"auto\", \"alpaca\"");
  EXPECT_HAS(refusal({"data.template=chatm"}), "(did you mean \"chatml\"?)");
  EXPECT_HAS(refusal({"data.template=missing.toml"}),
             "command line 'data.template=missing.toml': data.template: cannot");
  EXPECT_HAS(refusal({"data.template=" + folder_.write("bad.toml", "usr = 1\n")}), "bad.toml:1:1: unknown key 'usr'");
  EXPECT_HAS(refusal({"data.template_date=26.7.2024"}), "data.template_date: \"26.7.2024\" is not a date");
  EXPECT_HAS(refusal({"data.template=chatml", "data.template_variables={a=1}"}),
             "data.template_variables has no effect with data.template = \"chatml\"");
}

TEST_F(RunChat, AnswersEndWhereGenerationStops) {
  folder_.write("generation_config.json", R"({"eos_token_id": [259, 100000]})");
  EXPECT_EQ(config({}).stop_ids, (std::vector<int32_t>{259, tokenizer_.eos_id()})) << "and not at ids that it lacks";
}

TEST_F(RunChat, WithoutAFileOfTheModelTheTokenizersSaysWhereGenerationStops) {
  std::filesystem::create_directory(folder_.path() + "/tokenizer");
  folder_.write("tokenizer/generation_config.json", R"({"eos_token_id": [0, 259]})");
  const std::string path = "tokenizer.path=" + folder_.path() + "/tokenizer";
  EXPECT_EQ(config({path}).stop_ids, (std::vector<int32_t>{0, 259, tokenizer_.eos_id()}));
  folder_.write("generation_config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(config({path}).stop_ids, (std::vector<int32_t>{1, tokenizer_.eos_id()}));
}

}  // namespace
}  // namespace chassis
