// Evaluation by generation in whole runs: a model memorizes four conversations, and the share of its answers that are
// right rises from 0 to 1. The tokenizer is that of talk_test.cpp.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "tests/regress/memorized_chats.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

const std::string kRun = memorized_run(R"([checkpoint]
every_steps = 0
[eval]
every_steps = 10
keep_best = "questions"
[[eval.generate]]
path = "questions.jsonl"
max_new_tokens = 20
)");

std::string line_of(const Json& row) { return row.dump() + "\n"; }

void write_run(const ScratchDirectory& folder) {
  write_memorized_run(folder, kRun);
  std::string questions;
  for (const auto& [user, assistant] : kTurns) {
    Json question = {{"id", user}, {"messages", Json::array({message("user", user)})}};
    question["expected"] = user == "Bye" ? Json::array({"Bye", assistant}) : Json(assistant);
    questions += line_of(question);
  }
  write_text(folder / "questions.jsonl", questions);
}

Outcome chassis(const ScratchDirectory& folder, const std::string& verb, const Words& more) {
  Words words = {CHASSIS_PROGRAM,      verb, "run.toml", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR, "--plugin-path",
                 CHASSIS_TEST_STUB_DIR};
  words.insert(words.end(), more.begin(), more.end());
  return run_process(words, folder.path());
}

std::vector<Json> rows_of(const std::string& path) {
  std::istringstream lines(text_of_file(path));
  std::vector<Json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(Json::parse(line));
  return rows;
}

// The scores of a set by step.
std::vector<std::pair<int64_t, double>> scores_of(const std::string& run, const std::string& set) {
  std::vector<std::pair<int64_t, double>> scores;
  for (const Json& row : rows_of(run + "/metrics.jsonl"))
    if (row.contains("score") && row["eval"] == set) scores.emplace_back(row["step"], row["score"]);
  return scores;
}

// Trained once for all tests.
class Memorized : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new ScratchDirectory;
    write_run(*folder_);
    trained_ = new Outcome(chassis(*folder_, "train", {}));
    ASSERT_EQ(trained_->exit_code, 0) << trained_->output;
  }
  static void TearDownTestSuite() {
    delete std::exchange(folder_, nullptr);
    delete std::exchange(trained_, nullptr);
  }
  static std::string last_answers(const std::string& run) {
    return text_of_file(*folder_ / (run + "/generations/questions/step-120.jsonl"));
  }

  static ScratchDirectory* folder_;
  static Outcome* trained_;
};
ScratchDirectory* Memorized::folder_ = nullptr;
Outcome* Memorized::trained_ = nullptr;

TEST_F(Memorized, TheScoreRisesAndTheFirstBestStepIsKept) {
  const auto scores = scores_of(*folder_ / "out", "questions");
  ASSERT_EQ(scores.size(), 12u);
  EXPECT_EQ(scores.front(), std::pair(int64_t{10}, 0.0));
  EXPECT_EQ(scores.back(), std::pair(int64_t{120}, 1.0));
  const auto best = std::ranges::max_element(scores, {}, &std::pair<int64_t, double>::second);
  char name[64];
  std::snprintf(name, sizeof name, "checkpoints/step-%06d", static_cast<int>(best->first));
  EXPECT_EQ(fs::read_symlink(*folder_ / "out/best").string(), name);
  EXPECT_HAS(trained_->output, "step 120 questions: score 1.0000, 4 of 4 answers passed, 0 cut, in ");
  EXPECT_HAS(trained_->output, "best: score 1 on \"questions\" at step " + std::to_string(best->first));
}

TEST_F(Memorized, AnswersAreKeptWithTheirRows) {
  const std::vector<Json> rows = rows_of(*folder_ / "out/generations/questions/step-120.jsonl");
  ASSERT_EQ(rows.size(), kTurns.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["id"], kTurns[i].first);
    EXPECT_EQ(rows[i]["answer"], kTurns[i].second);
    EXPECT_EQ(rows[i]["finish_reason"], "stop");
    EXPECT_EQ(rows[i]["passed"], true);
  }
  const std::vector<Json> first = rows_of(*folder_ / "out/generations/questions/step-10.jsonl");
  ASSERT_EQ(first.size(), kTurns.size());
  for (const Json& row : first) EXPECT_EQ(row["passed"], false);
}

TEST_F(Memorized, TensorParallelRanksGiveTheSameScoresAndRankZeroRunsTheJudge) {
  const Outcome outcome =
      chassis(*folder_, "train",
              {"run.output_dir=two", "--nproc", "2", "parallel.0.plugin=tensor", "mesh.tp=2", "eval.every_steps=120",
               "eval.generate.1.path=questions.jsonl", "eval.generate.1.name=judged", "eval.generate.1.score=command",
               R"(eval.generate.1.command=["/bin/sh", "-c", "echo >> judged; grep -q 'answer.:.Hello there!'"])"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(scores_of(*folder_ / "two", "questions"), (std::vector{std::pair(int64_t{120}, 1.0)}));
  EXPECT_EQ(scores_of(*folder_ / "two", "judged"), (std::vector{std::pair(int64_t{120}, 0.25)}));
  EXPECT_EQ(last_answers("two"), last_answers("out"));
  EXPECT_EQ(text_of_file(*folder_ / "judged"), "\n\n\n\n") << "each answer is judged once";
}

TEST_F(Memorized, EvalAndReportShowTheScores) {
  const Words cut = {"eval.generate.1.path=questions.jsonl", "eval.generate.1.name=cut",
                     "eval.generate.1.max_new_tokens=3",     "eval.generate.1.max_rows=3",
                     "eval.generate.1.score=regex",          "eval.generate.1.pattern=^(?:Hel|A t)$"};
  const Outcome text = chassis(*folder_, "eval", cut);
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_HAS(text.output, "questions score 1.000000 passed 4 of 4 cut 0\n");
  EXPECT_HAS(text.output, "cut score 0.666667 passed 2 of 3 cut 3\n");
  EXPECT_HAS(chassis(*folder_, "eval", {"--json"}).output, "\"score\"");
  const Outcome report = run_process({CHASSIS_PROGRAM, "report", "out"}, folder_->path());
  EXPECT_HAS(report.output, "score          1.0000 questions  4 of 4 passed, 0 cut, highest 1.0000 at step ");
}

// With a learning rate near 0 every score is 0, so the first evaluation stays the best.
class GenerationRun : public testing::Test {
 protected:
  GenerationRun() { write_run(folder_); }

  Outcome train(const Words& more) {
    Words words = {"optimizer.lr=1e-30", "schedule.name=constant", "run.max_steps=6", "eval.every_steps=1",
                   "eval.generate.0.max_new_tokens=2"};
    words.insert(words.end(), more.begin(), more.end());
    return chassis(folder_, "train", words);
  }
  void expect_refused(const Words& words, const std::string& what) {
    const Outcome outcome = chassis(folder_, "check", words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_HAS(outcome.output, what);
  }
  std::string best() { return fs::read_symlink(folder_ / "out/best").string(); }

  ScratchDirectory folder_;
};

TEST_F(GenerationRun, PatienceCountsScoresThatAreNotHigherAndAResumedRunContinuesToCount) {
  ASSERT_EQ(train({"eval.patience=3", "run.max_steps=2"}).exit_code, 0);
  EXPECT_EQ(best(), "checkpoints/step-000001");
  const Outcome rest = train({"eval.patience=3"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_HAS(rest.output,
             "stopped early: 3 evaluations in a row were not better than score 0 on \"questions\" at step 1");
  EXPECT_EQ(scores_of(folder_ / "out", "questions").size(), 4u);
  EXPECT_EQ(best(), "checkpoints/step-000001");
}

TEST_F(GenerationRun, ASetThatGaveALossBeforeBeginsAnew) {
  const Words loss = {"data.eval.0.path=chats.jsonl", "data.eval.0.format=messages", "data.eval.0.name=questions",
                      "eval.generate.0.name=other"};
  Words first = loss;
  first.push_back("run.max_steps=1");
  ASSERT_EQ(train(first).exit_code, 0);
  const Outcome rest = train({"run.max_steps=2"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_HAS(rest.output,
             "has the lowest loss of evaluation set \"questions\", and eval.keep_best is \"questions\", "
             "whose score decides: the next evaluation counts as the best");
  EXPECT_EQ(best(), "checkpoints/step-000002");
}

TEST_F(GenerationRun, PrivateQuestionsHavePrivateAnswers) {
  ASSERT_EQ(chmod((folder_ / "questions.jsonl").c_str(), 0600), 0);
  ASSERT_EQ(train({"run.max_steps=1"}).exit_code, 0);
  struct stat info {};
  ASSERT_EQ(stat((folder_ / "out/generations/questions/step-1.jsonl").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(GenerationRun, AFolderOfAnswersThatIsALinkIsRefused) {
  fs::create_directories(folder_ / "out");
  fs::create_directory_symlink(folder_ / "tokenizer", folder_ / "out/generations");
  const Outcome outcome = train({});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "generations' is in the way: it is not a folder");
}

TEST_F(GenerationRun, AJudgeThatCrashesOrIsSlowIsCountedAndOneThatCannotStartEndsTheRun) {
  const auto judged_by = [&](const std::string& command, const std::string& timeout_s = "30") {
    fs::remove_all(folder_ / "out");
    return train({"run.max_steps=1", "eval.keep_best=", "eval.generate.0.score=command",
                  "eval.generate.0.command=" + command, "eval.generate.0.command_timeout_s=" + timeout_s,
                  "eval.generate.0.max_rows=2"});
  };
  EXPECT_HAS(judged_by(R"(["/bin/sh", "-c", "kill -SEGV $$"])").output, "answers whose judge crashed (2 times)");
  EXPECT_HAS(judged_by(R"(["sleep", "60"])", "0.2").output, "answers that were not judged in time (2 times)");
  write_text(folder_ / "judge", "#!/no/such/interpreter\n");
  ASSERT_EQ(chmod((folder_ / "judge").c_str(), 0755), 0);
  const Outcome broken = judged_by(R"(["./judge"])");
  EXPECT_EQ(broken.exit_code, 2) << broken.output;
  EXPECT_HAS(broken.output, "'./judge' cannot be started: No such file or directory");
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoints/step-000001")) << "what was trained is saved";
}

// Each answer would be judged for a minute.
TEST_F(GenerationRun, AStopGivesAnEvaluationUpAndASecondOneKillsTheJudge) {
  for (const int ranks : {1, 2}) {
    for (const bool twice : {false, true}) {
      if (twice && ranks > 1) continue;
      fs::remove_all(folder_ / "out");
      const std::string pid_file = folder_ / "judge.pid";
      fs::remove(pid_file);
      Words words = {CHASSIS_PROGRAM,
                     "train",
                     "run.toml",
                     "--plugin-path",
                     CHASSIS_TEST_PLUGIN_DIR,
                     "--plugin-path",
                     CHASSIS_TEST_STUB_DIR,
                     "run.max_steps=6",
                     "eval.every_steps=1",
                     "eval.keep_best=",
                     "eval.generate.0.max_new_tokens=2",
                     "eval.generate.0.score=command",
                     "eval.generate.0.command=[\"/bin/sh\", \"-c\", \"echo $$ > " + pid_file + "; exec sleep " +
                         (twice ? "60" : "1") + "\"]"};
      if (ranks > 1) words.insert(words.end(), {"--nproc", "2", "parallel.0.plugin=ddp"});
      Process run(words, folder_.path());
      for (int i = 0; i < 3000 && (!fs::exists(pid_file) || text_of_file(pid_file).empty()); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      run.send(SIGINT);
      const pid_t judge = std::stoi(text_of_file(pid_file));
      if (twice) {
        ASSERT_TRUE(run.wait_for("Ctrl-C again ends at once")) << run.output_so_far();
        run.send(SIGINT);
      }
      const Outcome outcome = run.wait();
      if (twice) {
        EXPECT_EQ(outcome.exit_code, 130) << outcome.output;
        for (int i = 0; i < 500 && kill(judge, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_NE(kill(judge, 0), 0) << "the judge is still running";
      } else {
        EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
        EXPECT_HAS(outcome.output, "the run is to stop, so \"questions\" has no score at step 1");
        EXPECT_HAS(outcome.output, "step-000002");
      }
    }
  }
}

TEST_F(GenerationRun, WhatCannotBeAnsweredOrScoredIsRefusedBeforeTheFirstStep) {
  const std::string good = text_of_file(folder_ / "questions.jsonl");
  write_text(folder_ / "bare.jsonl", good + "{\"prompt\": \"x\"}\n");
  expect_refused({"eval.generate.0.path=bare.jsonl", "eval.keep_best="}, "bare.jsonl:5: has no 'expected'");
  expect_refused({"eval.generate.0.path=bare.jsonl", "eval.keep_best=", "eval.generate.0.score=regex",
                  "eval.generate.0.pattern=(x)"},
                 "bare.jsonl:5: has no 'expected'");
  write_text(folder_ / "passed.jsonl", "{\"prompt\": \"x\", \"expected\": \"y\", \"passed\": true}\n");
  expect_refused({"eval.generate.0.path=passed.jsonl", "eval.keep_best="}, "passed.jsonl:1: has a key 'passed'");
  write_text(folder_ / "empty.jsonl", "\n");
  expect_refused({"eval.generate.0.path=empty.jsonl", "eval.keep_best="},
                 "eval.generate.0.path: 'empty.jsonl' has no prompt");
  expect_refused({"eval.generate.0.path=nowhere.jsonl", "eval.keep_best="}, "eval.generate.0.path: ");
  expect_refused({"eval.generate.0.score=command", "eval.generate.0.command=no-such-judge"},
                 "eval.generate.0.command: there is no program 'no-such-judge' in PATH");
  write_text(folder_ / "text.txt", std::string(2000, 'a') + "\n");
  const Words text = {"train.task=pretrain", "data.train.0.path=text.txt", "data.train.0.format=text"};
  Words bare = text;
  bare.insert(bare.end(), {"data.template=auto", "tokenizer.plugin=bytes"});
  expect_refused(bare, "the tokenizer has no chat template");
  const Outcome without_data =
      chassis(folder_, "check", {"eval.generate.0.path=nowhere.jsonl", "eval.keep_best=", "--without-data"});
  EXPECT_EQ(without_data.exit_code, 0) << without_data.output;
  write_text(folder_ / "long.jsonl", "{\"prompt\": \"" + std::string(100, 'a') + "\", \"expected\": \"y\"}\n");
  const std::string& run = kRun;
  const std::string gpt2 = R"([model]
plugin = "gpt2"
config = { vocab_size = 264, n_embd = 16, n_layer = 1, n_head = 2, n_positions = 64 }
)";
  write_text(folder_ / "run.toml", run.substr(0, run.find("[model]")) + gpt2 + run.substr(run.find("[tokenizer]")));
  expect_refused({"eval.generate.0.path=long.jsonl", "eval.keep_best="}, "long.jsonl:1: the prompt has 100 tokens");
}

}  // namespace
}  // namespace chassis::test
