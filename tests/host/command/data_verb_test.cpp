// `chassis data` on small files.
#include <gtest/gtest.h>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;

class DataVerb : public testing::Test {
 protected:
  DataVerb() {
    std::filesystem::copy(CHASSIS_TEST_SOURCE_DIR "/tests/golden/run/base", scratch_.path(),
                          std::filesystem::copy_options::recursive);
    std::string rows;
    for (const char* row : {R"({"prompt":"ab","completion":"cd"})", R"({"prompt":"","completion":"e"})",
                            R"({"prompt":"a long question","completion":"no"})", R"({"prompt":"x","completion":"y"})"})
      rows += std::string(row) + "\n";
    test::write_text(scratch_ / "rows.jsonl", rows);
  }
  Outcome chassis(const std::string& verb, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {
        CHASSIS_TEST_BINARY_DIR "/bin/chassis", "data", verb, "good.toml", "train.task=sft",
        "data.train.0.path=rows.jsonl"};
    words.push_back("data.train.0.format=prompt_completion");
    words.insert(words.end(), more.begin(), more.end());
    return test::run_process(words, scratch_.path());
  }
  test::ScratchDirectory scratch_;
};

TEST_F(DataVerb, PreviewMarksWhatIsTrained) {
  const Outcome shown = chassis("preview");
  ASSERT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_HAS(shown.output, "«trained», not trained, ‹masked");
  EXPECT_HAS(shown.output, "rows.jsonl:1: 6 tokens, 3 trained\n<bos>ab«cd<eos>»\n");
  EXPECT_HAS(shown.output, "rows.jsonl:3: 19 tokens, 3 trained; not used: it has 19 tokens, train.seq_len is 16\n");
  EXPECT_HAS(shown.output, "data.train.0: a sample, the first 3 rows of 1 of 1 files");
  EXPECT_EQ(shown.output.find("\x1b["), std::string::npos) << "no colours without a terminal";
  EXPECT_HAS(chassis("preview", {"--rows", "9"}).output, "data.train.0: all rows of 1 files");
}

TEST_F(DataVerb, PreviewShowsLabelsThatAreNotTheIdsAtTheirPlaces) {
  test::write_text(scratch_ / "rows.jsonl",
                   "{\"input_ids\":[97,98,99,100],\"labels\":[98,99,100,-100]}\n"
                   "{\"input_ids\":[97,98,99],\"labels\":[-100,98,7]}\n{\"input_ids\":[97,98]}\n");
  const Outcome shown = chassis("preview", {"data.train.0.format=tokens"});
  ASSERT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_HAS(shown.output, "3 labels are not the ids at their places: 0: 97 → 98, 1: 98 → 99, 2: 99 → 100; all are");
  EXPECT_HAS(shown.output, "1 label is not the id at its place: 2: 99 → 7\n");
  const Outcome json = chassis("preview", {"data.train.0.format=tokens", "--json", "--rows", "1"});
  EXPECT_EQ(parse_json(json.output.substr(json.output.find('{')), "row")["other_labels"][1]["label"], 99);
  EXPECT_HAS(chassis("stats", {"data.train.0.format=tokens"}).output, "shifted beforehand");
}

TEST_F(DataVerb, PreviewListsIds) {
  EXPECT_HAS(chassis("preview", {"--ids", "--rows", "1"}).output, "      98  masked     b\n      99  trained    c\n");
}

TEST_F(DataVerb, PreviewWritesAPageAndJson) {
  const Outcome shown = chassis("preview", {"--json", "--rows", "1", "--html", "page.html"});
  ASSERT_EQ(shown.exit_code, 0) << shown.output;
  const Json row = parse_json(shown.output.substr(shown.output.find('{')), "row");
  EXPECT_EQ(row["line"], 1);
  EXPECT_EQ(row["num_trained_tokens"], 3);
  EXPECT_EQ(row["pieces"][1]["text"], "cd<eos>");
  EXPECT_EQ(row["pieces"][1]["ids"], (std::vector<int>{99, 100, 257}));
  EXPECT_HAS(read_file(scratch_ / "page.html"), "<span class=\"trained\" title=\"99 100 257\">cd&lt;eos&gt;</span>");
  test::write_text(scratch_ / "mine.html", "<html>");
  const Outcome refused = chassis("preview", {"--html", "mine.html"});
  EXPECT_EQ(refused.exit_code, 7);
  EXPECT_HAS(refused.output, "is not a preview written by this program");
}

TEST_F(DataVerb, RefusesAnEmptyNameOfAPage) {
  const Outcome refused = chassis("preview", {"--html", ""});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "the path is empty");
}

TEST_F(DataVerb, StatsThatCanUseNoRowDoNotBlameTheLimit) {
  test::write_text(scratch_ / "rows.jsonl", "{\"prompt\":\"a very long question\",\"completion\":\"no\"}\n");
  const Outcome refused = chassis("stats", {"data.overflow=truncate"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_HAS(refused.output, "none of the 1 rows of");
  EXPECT_EQ(refused.output.find("max_drop_ratio"), std::string::npos) << refused.output;
}

TEST_F(DataVerb, NeedsNoLengthOfTheRunAndNoLearningRate) {
  test::write_text(scratch_ / "short.toml", "extends = [\"good.toml\"]\n[run]\nmax_steps = 0\n");
  const Outcome counted =
      test::run_process({CHASSIS_TEST_BINARY_DIR "/bin/chassis", "data", "stats", "short.toml", "train.task=sft",
                         "data.train.0.path=rows.jsonl", "data.train.0.format=prompt_completion"},
                        scratch_.path());
  EXPECT_EQ(counted.exit_code, 0) << counted.output;
}

TEST_F(DataVerb, TheLimitOfDroppedRowsIsThatOfTheConfiguration) {
  const auto train = [&](const std::string& limit) {
    return test::run_process(
        {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "train", "good.toml", "run.max_steps=1", "train.task=sft",
         "data.train.0.path=rows.jsonl", "data.train.0.format=prompt_completion", limit, "run.output_dir=out/" + limit},
        scratch_.path());
  };
  EXPECT_HAS(train("data.max_drop_ratio=0.2").output, "data.max_drop_ratio is 0.2");
  const Outcome trained = train("data.max_drop_ratio=0.25");
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
}

TEST_F(DataVerb, CheckFindsAFormatOrATemplateThatDoesNotFit) {
  const auto check = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "check", "good.toml", "train.task=sft",
                                      "data.train.0.path=rows.jsonl"};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_process(words, scratch_.path());
  };
  EXPECT_EQ(check({"data.train.0.format=prompt_completion"}).exit_code, 0);
  const Outcome format = check({"data.train.0.format=alpaca", "data.template=alpaca"});
  EXPECT_EQ(format.exit_code, 2);
  const Outcome segments = check({"data.train.0.format=segments"});
  EXPECT_EQ(segments.exit_code, 2);
  EXPECT_HAS(segments.output, "rows.jsonl:1: key \"segments\" is missing");
  for (const bool with_data : {true, false}) {
    std::vector<std::string> words = {"data.train.0.format=prompt_completion", "data.template=qwen"};
    if (!with_data) words.emplace_back("--without-data");
    const Outcome refused = check(words);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_HAS(refused.output, "data.template = \"qwen\" is none of \"auto\"");
  }
  EXPECT_HAS(check({"data.train.0.format=prompt_completion", "data.template=none.jinja"}).output,
             "data.template: cannot open 'none.jinja'");
}

TEST_F(DataVerb, StatsCountRowsTokensAndWhatIsDropped) {
  const Outcome counted = chassis("stats");
  ASSERT_EQ(counted.exit_code, 0) << counted.output;
  EXPECT_HAS(counted.output, "rows            4\n");
  EXPECT_HAS(counted.output, "too long        1 (25.00 %): more than train.seq_len = 16 tokens");
  EXPECT_HAS(counted.output, "tokens          32\n");
  EXPECT_HAS(counted.output, "trained tokens  10 (31.25 %)");
  EXPECT_HAS(counted.output, "longest         19 tokens");
  EXPECT_HAS(counted.output, "packing         best_fit: 1.0 rows of 16 tokens");
}

TEST_F(DataVerb, KeysThatAreNotUsedAndRefusedRowsAreNamed) {
  test::write_text(scratch_ / "rows.jsonl",
                   "{\"prompt\":\"ab\",\"completion\":\"cd\",\"id\":1}\n{\"prompt\":\"x\",\"completion\":\"\"}\n"
                   "{\"prompt\":\"x\",\"completion\":\"y\"}\n");
  for (const char* verb : {"preview", "stats"}) {
    const Outcome refused = chassis(verb);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_HAS(refused.output, "rows.jsonl:2: nothing of the row is trained but <eos> (id 257)");
    EXPECT_HAS(refused.output, "data.on_refused = \"skip\"");
  }
  const Outcome shown = chassis("preview", {"data.on_refused=skip"});
  EXPECT_EQ(shown.exit_code, 0) << shown.output;
  EXPECT_HAS(shown.output, "data.train.0: the key \"id\" is not used by format \"prompt_completion\": 1\n");
  EXPECT_HAS(shown.output, "rows.jsonl:2: 0 tokens, 0 trained; not used: refused: nothing of the row is trained");
  const Outcome counted = chassis("stats", {"data.on_refused=skip"});
  EXPECT_EQ(counted.exit_code, 0) << counted.output;
  EXPECT_HAS(counted.output, "dropped         1 (33.33 %): refused: nothing of the row is trained but <eos>");
  EXPECT_HAS(counted.output, "unused key      id (1 times)\n");
  const std::string row = chassis("preview", {"--json", "--rows", "1", "data.on_refused=skip"}).output;
  EXPECT_EQ(parse_json(row.substr(row.find('{')), "row")["unused_keys"]["id"], 1);
  const Outcome trained = test::run_process(
      {CHASSIS_TEST_BINARY_DIR "/bin/chassis", "train", "good.toml", "run.max_steps=1", "train.task=sft",
       "data.train.0.path=rows.jsonl", "data.train.0.format=prompt_completion", "data.on_refused=skip"},
      scratch_.path());
  EXPECT_EQ(trained.exit_code, 2) << "refused rows count towards the limit";
  EXPECT_HAS(trained.output, "data.max_drop_ratio is 0.05");
}

TEST_F(DataVerb, ATokenizerWithoutSpecialTokensInTextsIsRefusedForConversations) {
  const Outcome refused = chassis("stats", {"data.train.0.format=messages", "data.template=plain"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "template plain ends answers in <eos>, which this tokenizer does not read as a token");
}

TEST_F(DataVerb, ColumnsAndTagsRenameKeys) {
  test::write_text(scratch_ / "rows.jsonl", R"({"q":"ab","a":"cd"})"
                                            "\n");
  EXPECT_HAS(chassis("preview", {R"(data.train.0.columns={prompt="q",completion="a"})"}).output, "ab«cd<eos>»");
  const Outcome missing = chassis("preview");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_HAS(missing.output, "rows.jsonl:1: key \"prompt\" is missing");
  const Outcome wrong = chassis("preview", {"data.train.0.columns={prompt=3}"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_HAS(wrong.output, "data.train.0.columns.prompt must be a string, not an integer");
  const Outcome unknown = chassis("preview", {R"(data.train.0.columns={messages="q"})"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_HAS(unknown.output, "format \"prompt_completion\" has no \"messages\"; it has \"prompt\", \"completion\"");
}

}  // namespace
}  // namespace chassis
