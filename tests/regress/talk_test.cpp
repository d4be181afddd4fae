// Memorizes short conversations, then talks to the model in every way: turns, files of prompts, and samples while it is
// trained. The tokenizer knows bytes, the special tokens of ChatML and two words.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "tests/regress/memorized_chats.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

using Json = nlohmann::ordered_json;
#define PLUGIN_PATHS "--plugin-path " CHASSIS_TEST_PLUGIN_DIR " --plugin-path " CHASSIS_TEST_STUB_DIR

void write_run(const ScratchDirectory& folder) {
  write_memorized_run(folder, memorized_run("[checkpoint]\nevery_steps = 0\n[generate]\nmax_new_tokens = 40\n"));
}

Outcome run_shell(const std::string& folder, const std::string& line) {
  return run_process({"/bin/bash", "-c", line}, folder);
}

// Trained once for all tests.
class Talk : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new ScratchDirectory;
    write_run(*folder_);
    const Outcome trained = run_process({CHASSIS_PROGRAM, "train", "run.toml", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR,
                                         "--plugin-path", CHASSIS_TEST_STUB_DIR},
                                        folder_->path());
    ASSERT_EQ(trained.exit_code, 0) << trained.output;
  }
  static void TearDownTestSuite() { delete std::exchange(folder_, nullptr); }

  // `input` is standard input; the log is left out of the output.
  static Outcome generate(const std::string& words, const std::string& input = "") {
    write_text(*folder_ / "input.txt", input);
    return run_shell(folder_->path(), std::string(CHASSIS_PROGRAM) + " generate run.toml " + words +
                                          " " PLUGIN_PATHS " < input.txt 2> log.txt");
  }
  static std::string log() { return text_of_file(*folder_ / "log.txt"); }

  static ScratchDirectory* folder_;
};
ScratchDirectory* Talk::folder_ = nullptr;

// ChatML has no place for names. They are counted in the output, in log.txt and in events.jsonl.
TEST(Chats, WhatTheirTemplateLeavesOutIsInTheLogAndInTheSummaryOfARun) {
  const ScratchDirectory folder;
  write_run(folder);
  std::string chats;
  for (const auto& [user, assistant] : kTurns) {
    Json named = message("user", user);
    named["name"] = "bob";
    chats += Json({{"messages", {named, message("assistant", assistant)}}}).dump() + "\n";
  }
  write_text(folder / "chats.jsonl", chats);
  const Outcome run = run_shell(folder.path(), CHASSIS_PROGRAM " train run.toml run.max_steps=1 " PLUGIN_PATHS);
  ASSERT_EQ(run.exit_code, 0) << run.output;
  const std::string log = text_of_file(folder / "out/log.txt"), what = "the template leaves out the name of messages";
  for (const std::string& text : {run.output, log}) {
    EXPECT_HAS(text, "chats.jsonl: " + what + "\n");
    EXPECT_HAS(text, "warning: data.changes chats.jsonl: " + what + " (4 times)\n");
  }
  EXPECT_HAS(text_of_file(folder / "out/events.jsonl"), "data.changes chats.jsonl: " + what);
}

TEST_F(Talk, EveryLineOfStandardInputIsATurnAndAnAnswerStopsByItself) {
  for (const auto& [user, assistant] : kTurns) {
    const Outcome answer = generate("--chat", user + "\n");
    EXPECT_EQ(answer.exit_code, 0) << log();
    EXPECT_EQ(answer.output, assistant + "\n") << log();
  }
  const Outcome all = generate("--chat", "Hi\n/reset\n\nBye\r\n/reset\n2+2?");
  EXPECT_EQ(all.output, "Hello there!\nSee you soon.\nFour,\nI think.\n") << log();
}

TEST_F(Talk, TurnsSeeTheConversationBeforeThem) {
  const std::string alone = generate("--chat", "Bye\n").output;
  EXPECT_EQ(generate("--chat --no-cache", "Hi\nBye\n").output, generate("--chat", "Hi\nBye\n").output)
      << "the keys and values of earlier turns change nothing";
  EXPECT_EQ(generate("--chat", "/system x\n/system\nBye\n").output, alone) << "no system message";
}

TEST_F(Talk, CommandsBeginWithASlashAndOtherOnesAreRefused) {
  EXPECT_EQ(generate("--chat", "/help\nHi\n/exit\nBye\n").output, "Hello there!\n");
  const Outcome unknown = generate("--chat", "Hi\n/quit\nBye\n");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.output, "Hello there!\n");
  EXPECT_HAS(log(), "standard input:2: unknown command /quit");
  const Outcome bytes = generate("--chat", "\xff\n");
  EXPECT_EQ(bytes.exit_code, 2);
  EXPECT_HAS(log(), "standard input:1: the text is not UTF-8");
  EXPECT_EQ(generate("--chat", "//quit\n").exit_code, 0) << "a text that begins with a slash";
}

TEST_F(Talk, StopTextsEndAnAnswerAndAreNotShown) {
  EXPECT_EQ(generate("--chat --stop 'e t'", "Hi\n").output, "Hello there!\n");
  EXPECT_EQ(generate("--chat --stop 'o t' --stop 'zzz'", "Hi\n").output, "Hell\n");
  EXPECT_EQ(generate("--chat 'generate.stop=[\"there!\"]'", "Hi\n").output, "Hello \n");
}

TEST_F(Talk, AnAnswerThatIsCutSaysSo) {
  EXPECT_EQ(generate("--chat generate.max_new_tokens=5", "Hi\n").output, "Hello\n");
  EXPECT_HAS(log(), "cut after 5 tokens");
}

TEST_F(Talk, ASeedDrawsTheSameAnswersAgain) {
  const std::string drawn = "--chat generate.temperature=3.0 generate.top_k=50";
  const std::string once = generate(drawn, "Hi\nHi\n").output;
  EXPECT_EQ(generate(drawn, "Hi\nHi\n").output, once);
  EXPECT_NE(generate(drawn + " run.seed=7", "Hi\nHi\n").output, once);
}

TEST_F(Talk, CtrlCEndsTheAnswerAndNotTheProgram) {
  // A model that generates only "a", and never ends.
  std::string ids;
  for (int i = 0; i < 64; ++i) ids += i == 0 ? "97" : ", 97";
  write_text(*folder_ / "endless.jsonl", "{\"input_ids\": [" + ids + "]}\n");
  const std::string words =
      " run.toml run.output_dir=endless train.task=pretrain run.max_steps=20 data.train.0.path=endless.jsonl "
      "data.train.0.format=tokens " PLUGIN_PATHS;
  const Outcome trained = run_shell(folder_->path(), CHASSIS_PROGRAM " train" + words + " data.template=auto");
  ASSERT_EQ(trained.exit_code, 0) << trained.output;

  const std::string pipe = *folder_ / "keys";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Process program({"/bin/bash", "-c",
                   "exec " CHASSIS_PROGRAM " generate" + words + " --chat generate.max_new_tokens=100000 < keys"},
                  folder_->path());
  std::ofstream keys(pipe);
  for (int turn = 0; turn < 2; ++turn) {  // the second answer shows that the program goes on
    const size_t before = program.output_so_far().size();
    keys << "Hi\n" << std::flush;
    for (int i = 0; i < 3000 && program.output_so_far().size() < before + 200; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_GE(program.output_so_far().size(), before + 200) << program.output_so_far();
    program.send(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  keys << "/exit\n" << std::flush;
  keys.close();
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "aaaa\naaaa");
}

TEST_F(Talk, AFileOfPromptsIsAnsweredInOrderAndASecondRunContinues) {
  std::string rows;
  for (const auto& [user, assistant] : kTurns)
    rows += Json({{"messages", {message("user", user)}}, {"expected", assistant}}).dump() + "\n";
  rows += R"({"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"})"
          "\n";
  write_text(*folder_ / "prompts.jsonl", rows);
  const Outcome answered = generate("--prompts prompts.jsonl --out answers.jsonl");
  ASSERT_EQ(answered.exit_code, 0) << log();
  EXPECT_EQ(answered.output, "");
  const std::string answers = text_of_file(*folder_ / "answers.jsonl");
  std::istringstream lines(answers);
  std::vector<Json> found;
  for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line));
  ASSERT_EQ(found.size(), kTurns.size() + 1);
  for (size_t i = 0; i < kTurns.size(); ++i) {
    EXPECT_EQ(found[i]["answer"], found[i]["expected"]);
    EXPECT_EQ(found[i]["finish_reason"], "stop");
    EXPECT_EQ(found[i]["answer_tokens"], kTurns[i].second.size());
  }
  EXPECT_EQ(found.back()["answer"], " there!");
  EXPECT_EQ(found.back()["prompt_tokens"], 15);

  write_text(*folder_ / "answers.jsonl", answers.substr(0, answers.size() / 2));
  ASSERT_EQ(generate("--prompts prompts.jsonl --out answers.jsonl").exit_code, 0) << log();
  EXPECT_HAS(log(), "of 5 prompts have already been answered");
  EXPECT_EQ(text_of_file(*folder_ / "answers.jsonl"), answers);
  EXPECT_EQ(generate("--prompts prompts.jsonl --out answers.jsonl generate.max_new_tokens=3").exit_code, 2);
  EXPECT_HAS(log(), "generate.max_new_tokens: 40 then, 3 now");
  EXPECT_EQ(text_of_file(*folder_ / "answers.jsonl"), answers);

  write_text(*folder_ / "prompts.jsonl", "{\"prompt\": \"x\"}\n{\"promt\": \"y\"}\n");
  EXPECT_EQ(generate("--prompts prompts.jsonl --out other.jsonl").exit_code, 2);
  EXPECT_HAS(log(), "prompts.jsonl:2: has neither 'prompt' nor 'messages'");
  EXPECT_FALSE(std::filesystem::exists(*folder_ / "other.jsonl"));
}

TEST_F(Talk, OneWayToGivePromptsIsChosen) {
  EXPECT_EQ(generate("").exit_code, 2);
  EXPECT_HAS(log(), "no prompt is given");
  EXPECT_EQ(generate("--chat --prompt x").exit_code, 2);
  EXPECT_HAS(log(), "more than one of");
  EXPECT_EQ(generate("--prompts p.jsonl").exit_code, 2);
  EXPECT_HAS(log(), "--prompts needs --out");
  EXPECT_EQ(generate("--chat --nproc 2").exit_code, 2);
  EXPECT_HAS(log(), "--chat runs in one process");
}

// The values of a key in all lines of a file.
std::vector<Json> values(const std::string& path, const std::string& key) {
  std::istringstream lines(text_of_file(path));
  std::vector<Json> out;
  for (std::string line; std::getline(lines, line);)
    if (const Json row = Json::parse(line); row.contains(key)) out.push_back(row[key]);
  return out;
}

struct Division {
  const char* name;
  const char* words;
};

class Samples : public testing::TestWithParam<Division> {};
INSTANTIATE_TEST_SUITE_P(
    , Samples,
    testing::Values(Division{"one_process", ""}, Division{"fsdp2_on_2", " --nproc 2 parallel.0.plugin=fsdp2"},
                    Division{"zero3_on_2", " --nproc 2 parallel.0.plugin=zero parallel.0.stage=3"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Samples, ShowWhatTheModelHasLearnedAndChangeNothing) {
  ScratchDirectory folder;
  write_run(folder);
  const auto train = [&](const std::string& name, const std::string& words) {
    const Outcome outcome = run_shell(folder.path(), std::string(CHASSIS_PROGRAM) +
                                                         " train run.toml " PLUGIN_PATHS " run.output_dir=" + name +
                                                         GetParam().words + " " + words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  train("without", "");
  const std::string output = train("with", "'sample.prompts=[\"Hi\", \"Bye\"]' sample.every_steps=50");
  EXPECT_HAS(output, "step 120 sample 1/2: \"Hi\" -> \"Hello there!\" (12 tokens, stop)");
  EXPECT_HAS(output, "step 120 sample 2/2: \"Bye\" -> \"See you soon.\" (13 tokens, stop)");
  EXPECT_EQ(values(folder / "with/samples.jsonl", "step"), (std::vector<Json>{50, 50, 100, 100, 120, 120}));
  EXPECT_EQ(values(folder / "with/samples.jsonl", "answer").size(), 6u);
  const auto losses = values(folder / "without/metrics.jsonl", "loss");
  EXPECT_EQ(losses.size(), 120u);
  EXPECT_EQ(values(folder / "with/metrics.jsonl", "loss"), losses) << "to the last bit";
}

TEST(SamplesOfARun, AreContinuedWithTheRun) {
  ScratchDirectory folder;
  write_run(folder);
  const std::string train = std::string(CHASSIS_PROGRAM) +
                            " train run.toml " PLUGIN_PATHS
                            " 'sample.prompts=[\"Hi\"]' sample.every_steps=2 sample.max_new_tokens=3 run.max_steps=";
  ASSERT_EQ(run_shell(folder.path(), train + "4 'log.trace=[2, 2]'").exit_code, 0);
  EXPECT_HAS(text_of_file(folder / "out/trace/rank-0.json"), "\"name\":\"samples\",\"cat\":\"steps\"");
  const std::string first = text_of_file(folder / "out/samples.jsonl");
  const Outcome second = run_shell(folder.path(), train + "7");
  ASSERT_EQ(second.exit_code, 0) << second.output;
  EXPECT_TRUE(text_of_file(folder / "out/samples.jsonl").starts_with(first));
  EXPECT_EQ(values(folder / "out/samples.jsonl", "step"), (std::vector<Json>{2, 4, 6, 7}));
}

TEST(SamplesOfARun, PromptsThatCannotBeAnsweredAreRefused) {
  ScratchDirectory folder;
  write_run(folder);
  for (const char* verb : {"check", "train"}) {
    const Outcome outcome =
        run_shell(folder.path(), std::string(CHASSIS_PROGRAM) + " " + verb + " run.toml " PLUGIN_PATHS +
                                     " 'sample.prompts=[\"Hi\"]' data.template=gemma");
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_HAS(outcome.output, "which is not a token of the tokenizer");
  }
}

}  // namespace
}  // namespace chassis::test
