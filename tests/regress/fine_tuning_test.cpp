// The commands of docs/fine-tuning.md, one after the other, with a tiny model, a tokenizer trained here and 20 short
// conversations: in the end the model answers each of them word for word, and stops.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Questions and answers in turn; a few conversations have two turns.
const std::vector<std::vector<std::string>> kChats = {
    {"Who are you?", "A small model with a good memory."},
    {"What is your name?", "I have none yet."},
    {"Say hello.", "Hello! How are you?", "Fine, and you?", "Never better."},
    {"What is 2 + 2?", "4"},
    {"What is 3 + 4?", "7, if I remember well."},
    {"Name three colours.", "Red, green and blue."},
    {"Name a river in France.", "The Loire."},
    {"What is the capital of Italy?", "Rome."},
    {"What is the capital of Japan?", "Tokyo (東京)."},
    {"Wie heißt du?", "Ich habe noch keinen Namen."},
    {"Translate 'cat' into German.", "Katze"},
    {"Translate 'dog' into German.", "Hund"},
    {"Count to five.", "1, 2, 3, 4, 5"},
    {"Tell me a joke.", "A tensor walks into a bar.", "And then?", "It was broadcast."},
    {"What do you like?", "Short questions 🙂"},
    {"Do you sleep?", "Only between two steps."},
    {"Write a line of C.", "int main(void) { return 0; }"},
    {"Is it raining?", "I cannot look outside."},
    {"Thank you.", "You are welcome!"},
    {"Goodbye.", "See you soon."},
};

Json message(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string commands_of(const std::string& page, std::vector<std::string>& blocks) {
  std::istringstream lines(page);
  std::string block;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (inside && line == "```") blocks.push_back(std::exchange(block, ""));
    if (inside && line != "```") block += line + "\n";
    inside = line == "```sh" || (inside && line != "```");
  }
  return block;
}

class FineTuning : public testing::Test {
 protected:
  Outcome shell(const std::string& commands) {
    const std::string path = std::string(CHASSIS_TEST_BINARY_DIR) + "/bin:" + std::getenv("PATH");
    return run_process({"/bin/bash", "-euo", "pipefail", "-c", commands}, folder_.path(), {{"PATH", path}});
  }
  void run(const std::string& commands) {
    const Outcome outcome = shell(commands);
    ASSERT_EQ(outcome.exit_code, 0) << commands << outcome.output;
  }

  // models/base with a vocabulary of 600, whose weights one step has hardly changed.
  void make_base() {
    std::string text;
    for (const auto& chat : kChats)
      for (const std::string& turn : chat) text += turn + "\n";
    write_text(folder_ / "text.txt", text);
    write_text(folder_ / "base.toml", R"(schema_version = 1
[run]
output_dir = "out/base"
max_steps = 1
[model]
plugin = "llama"
[model.config]
architectures = ["LlamaForCausalLM"]
vocab_size = 640
hidden_size = 96
intermediate_size = 192
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 512
[tokenizer]
path = "tokenizer"
[[data.train]]
path = "text.txt"
[train]
seq_len = 32
[optimizer]
lr = 1e-6
)");
    run("chassis tokenizer train --vocab 600 text.txt --out tokenizer\n"
        "chassis train base.toml\n"
        "mkdir models\n"
        "mv out/base/final models/base\nrm models/base/manifest.json\n");  // its files may be edited
  }

  void write_data() {
    std::string rows, questions;
    for (const auto& chat : kChats) {
      Json messages = Json::array();
      for (size_t i = 0; i < chat.size(); ++i) messages.push_back(message(i % 2 ? "assistant" : "user", chat[i]));
      rows += Json({{"messages", messages}}).dump() + "\n";
      messages.erase(messages.size() - 1);
      questions += Json({{"messages", messages}}).dump() + "\n";
      for (size_t i = 0; i < chat.size(); i += 2) typed_ += chat[i] + "\n";
      for (size_t i = 1; i < chat.size(); i += 2) answers_ += chat[i] + "\n";
      typed_ += "/reset\n";
    }
    write_text(folder_ / "chats.jsonl", rows);
    write_text(folder_ / "questions.jsonl", questions);
    write_text(folder_ / "questions.txt", typed_);
  }

  ScratchDirectory folder_;
  std::string typed_, answers_;
};

TEST_F(FineTuning, TheCommandsOfThePageLeadToAModelThatAnswers) {
  make_base();
  write_data();
  if (HasFatalFailure()) return;
  std::vector<std::string> blocks;
  EXPECT_EQ(commands_of(text_of_file(CHASSIS_TEST_SOURCE_DIR "/docs/fine-tuning.md"), blocks), "") << "an open block";
  ASSERT_EQ(blocks.size(), 12u) << "this test reads them in order";

  for (const std::string& block : blocks) {
    const Outcome outcome = shell("{\n" + block + "} 2> log.txt");
    ASSERT_EQ(outcome.exit_code, 0) << block << outcome.output << text_of_file(folder_ / "log.txt");
    const auto has = [&](const char* word) { return block.find(word) != std::string::npos; };
    if (has("data preview")) {
      EXPECT_HAS(outcome.output, "A small model with a good memory.");
    }
    if (has("--chat")) {
      EXPECT_HAS(outcome.output, answers_) << block;
    }
    if (has("sample.prompts")) {
      EXPECT_HAS(text_of_file(folder_ / "log.txt"), "\"Who are you?\" -> \"A small model with a good memory.\"");
    }
  }

  std::istringstream lines(text_of_file(folder_ / "answers.jsonl"));
  size_t i = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row["answer"], kChats.at(i).back());
    EXPECT_EQ(row["finish_reason"], "stop");
  }
  EXPECT_EQ(i, kChats.size());
  EXPECT_NE(text_of_file(folder_ / "base.txt").substr(0, answers_.size()), answers_) << "without the adapter";
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
    for (const char* run : {"out/lora/final/", "out/qlora/final/"})
      EXPECT_TRUE(fs::exists(folder_ / (std::string(run) + name))) << run << name;
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / ("models/base-nf4/" + std::string(name)))) << name;
    EXPECT_TRUE(fs::exists(folder_ / ("merged/" + std::string(name)))) << name;
    EXPECT_TRUE(fs::exists(folder_ / ("out/chat/final/" + std::string(name)))) << name;
    EXPECT_TRUE(fs::exists(folder_ / ("exported/" + std::string(name)))) << name;
  }
  // Its settings are not those of chat.toml, so the weights of its checkpoint would mean something else.
  for (const char* verb : {"generate", "serve", "eval"}) {
    const Outcome other =
        shell(std::string("chassis ") + verb +
              " chat.toml adapter.plugin=lora adapter.alpha=3 --from out/lora data.eval.0.path=chats.jsonl "
              "data.eval.0.format=messages" +
              (verb == std::string("generate") ? " --prompt Hi" : ""));
    EXPECT_EQ(other.exit_code, 2) << other.output;
    EXPECT_HAS(other.output, "the adapter of out/lora would be computed otherwise than it was trained");
  }
}

// A template is stopped after 10 s, or after a number of instructions that grows with the conversation.
TEST_F(FineTuning, ACtrlCEndsARunWhoseTemplateRendersForLong) {
  make_base();
  write_data();
  if (HasFatalFailure()) return;
  write_text(folder_ / "slow.jinja",
             "{% if messages|length > 100 %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}"
             "{% endfor %}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>"
             "{% endfor %}");
  Json messages = Json::array();
  for (int i = 0; i < 40'000; ++i) messages.push_back(message(i % 2 == 0 ? "user" : "assistant", "x"));
  write_text(folder_ / "long.jsonl", Json({{"messages", messages}}).dump() + "\n");
  run("chassis init chat.toml --model models/base --data chats.jsonl");
  Process process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "train", "chat.toml", "data.template=slow.jinja",
                   "data.train.0.path=long.jsonl", "data.cache_dir=slow"},
                  folder_.path());
  const auto is_preparing = [&] {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_ / "slow", ignored))
      if (entry.path().extension() == ".unfinished") return true;
    return false;
  };
  for (int i = 0; i < 6000 && !is_preparing() && process.running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(is_preparing()) << process.output_so_far();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto start = std::chrono::steady_clock::now();
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << "0.8 s on an idle machine";
}

TEST_F(FineTuning, AnExportCarriesTheTemplateAndTheStopTokensOfItsTraining) {
  make_base();
  write_data();
  if (HasFatalFailure()) return;
  Json generation = Json::parse(text_of_file(folder_ / "models/base/generation_config.json"));
  generation["pad_token_id"] = 0;
  write_text(folder_ / "models/base/generation_config.json", generation.dump());
  run("chassis init chat.toml --model models/base --data chats.jsonl");
  EXPECT_HAS(text_of_file(folder_ / "chat.toml"), "template = \"auto\"") << "it knows where its own template stops";

  const Outcome trained = shell("chassis train chat.toml run.epochs=1 data.template=alpaca run.output_dir=out/alpaca");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_HAS(trained.output, "out/alpaca/resolved.toml --chat; ");
  EXPECT_HAS(trained.output, "the export leaves out pad_token_id 0 of generation_config.json");
  EXPECT_FALSE(Json::parse(text_of_file(folder_ / "out/alpaca/final/generation_config.json")).contains("pad_token_id"));
  run("chassis ckpt export out/alpaca exported");
  for (const std::string directory : {"out/alpaca/final/", "exported/"}) {
    const std::string jinja = text_of_file(folder_ / (directory + "chat_template.jinja"));
    EXPECT_HAS(jinja, "### Response:");
    const Json config = Json::parse(text_of_file(folder_ / (directory + "tokenizer_config.json")));
    EXPECT_EQ(config["chat_template"], jinja);
    EXPECT_EQ(config["eos_token"], "<|endoftext|>");
    EXPECT_EQ(Json::parse(text_of_file(folder_ / (directory + "generation_config.json")))["eos_token_id"],
              Json::array({0, 3}));
  }
  // The same rows become the same text and the same trained tokens.
  const std::string preview = "chassis data preview chat.toml --ids ";
  EXPECT_EQ(shell(preview + "model.path=exported data.template=auto 2> log.txt").output,
            shell(preview + "data.template=alpaca 2> log.txt").output);

  const std::string answer = "chassis generate chat.toml run.output_dir=out/alpaca generate.max_new_tokens=1 ";
  EXPECT_HAS(shell(answer + "--chat < questions.txt").output, "data.template was \"alpaca\", is \"auto\"");
  EXPECT_EQ(shell(answer + "data.template=alpaca --chat < questions.txt").output.find("data.template was"),
            std::string::npos);
  run("chassis train chat.toml run.epochs=1 run.output_dir=out/own");
  EXPECT_HAS(shell("chassis generate chat.toml run.output_dir=out/own generate.max_new_tokens=1 --chat "
                   "'data.template_variables={enable_thinking=false}' < questions.txt")
                 .output,
             "data.template_variables.enable_thinking was not set, is false");
}

TEST_F(FineTuning, ARowThatDoesNotFitTheModelsTemplateIsNamedAndTheTemplateKept) {
  make_base();
  write_data();
  if (HasFatalFailure()) return;
  Json config = Json::parse(text_of_file(folder_ / "models/base/tokenizer_config.json"));
  fs::remove(folder_ / "models/base/chat_template.jinja");
  config["chat_template"] =
      "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
      "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  write_text(folder_ / "models/base/tokenizer_config.json", config.dump());
  Json rows = {{"messages", {message("system", "s"), message("user", "q"), message("assistant", "a")}}};
  write_text(folder_ / "chats.jsonl", text_of_file(folder_ / "chats.jsonl") + rows.dump() + "\n");

  const std::string init = "chassis init chat.toml --model models/base --data chats.jsonl";
  const Outcome refused = shell(init);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "error: chats.jsonl:21: ");
  EXPECT_HAS(refused.output, "no system here");
  EXPECT_HAS(refused.output, "these fit all rows: chatml");
  EXPECT_FALSE(fs::exists(folder_ / "chat.toml"));
  run(init + " --template chatml");
  EXPECT_HAS(text_of_file(folder_ / "chat.toml"), "template = \"chatml\"");
}

TEST_F(FineTuning, AMistakeInConfigJsonIsTheOnlyError) {
  make_base();
  if (HasFatalFailure()) return;
  Json config = Json::parse(text_of_file(folder_ / "models/base/config.json"));
  config["hidden_size"] = -1;
  write_text(folder_ / "models/base/config.json", config.dump());
  const Outcome refused = shell(
      "sed -e '/^\\[model/,/^max_pos/d' -e '/^\\[tokenizer/,/^path/d' base.toml > text.toml\n"
      "chassis check text.toml model.path=models/base");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "models/base/config.json: plugin 'llama' 0.1.0: hidden_size is -1");
  EXPECT_EQ(refused.output.find("which needs a tokenizer"), std::string::npos) << refused.output;
}

TEST_F(FineTuning, InitRefusesOrPreventsWhatTrainRefuses) {
  make_base();
  if (HasFatalFailure()) return;
  const auto chat = [&](const std::string& answer) {
    return Json({{"messages", {message("user", "q" + std::to_string(answer.size())), message("assistant", answer)}}})
               .dump() +
           "\n";
  };
  std::string rows, questions;
  for (size_t i = 1; i <= 8; ++i) rows += chat(std::string(i % 4 == 0 ? 1500 + i : i, 'x'));
  write_text(folder_ / "long.jsonl", rows);
  const Outcome cut = shell("chassis init long.toml --model models/base --data long.jsonl");
  EXPECT_EQ(cut.exit_code, 0) << cut.output;
  EXPECT_HAS(cut.output, "2 of 8 rows are longer than seq_len 512, so they are cut: data.overflow = \"truncate\"");
  EXPECT_HAS(text_of_file(folder_ / "long.toml"), "overflow = \"truncate\"");
  run("chassis train long.toml run.epochs=1");

  for (size_t i = 0; i < 3; ++i)
    questions += Json({{"messages", {message("user", "q" + std::to_string(i))}}}).dump() + "\n";
  write_text(folder_ / "questions.jsonl", questions);
  const Outcome refused = shell("chassis init none.toml --model models/base --data questions.jsonl");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "3 of 3 rows of questions.jsonl cannot be used");
  EXPECT_HAS(refused.output, "no token is trained (3); the first is questions.jsonl:1");
  EXPECT_FALSE(fs::exists(folder_ / "none.toml"));
}

TEST_F(FineTuning, ASlotTemplateEndsInTokensThatTheExportStopsAt) {
  make_base();
  write_data();
  if (HasFatalFailure()) return;
  std::filesystem::remove(folder_ / "models/base/generation_config.json");
  // init writes the built-in template that gives the same text as the tokenizer's own, and the reason.
  run("chassis init chat.toml --model models/base --data chats.jsonl");
  EXPECT_HAS(text_of_file(folder_ / "chat.toml"), "template = \"chatml\"");
  EXPECT_HAS(text_of_file(folder_ / "chat.toml"),
             "the same text as the tokenizer's own, with which the model will not learn to stop: in the tokenizer's");
  run("chassis train chat.toml run.epochs=1");
  EXPECT_EQ(Json::parse(text_of_file(folder_ / "out/chat/final/generation_config.json"))["eos_token_id"],
            Json::array({0, 3}));

  Json config = Json::parse(text_of_file(folder_ / "models/base/tokenizer_config.json"));
  config.erase("chat_template");
  write_text(folder_ / "models/base/tokenizer_config.json", config.dump());
  run("chassis init without.toml --model models/base --data chats.jsonl");
  EXPECT_HAS(text_of_file(folder_ / "without.toml"), "template = \"chatml\"");

  write_text(folder_ / "segments.jsonl",
             R"({"segments": [{"text": "a b", "label": false}, {"text": "c", "label": true}]})");
  run("chassis init segments.toml --model models/base --data segments.jsonl");
  const Outcome trained = shell("chassis train segments.toml run.epochs=1");
  EXPECT_HAS(trained.output, "out/segments/resolved.toml --prompt TEXT; ");
}

}  // namespace
}  // namespace chassis::test
