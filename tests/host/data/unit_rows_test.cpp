// Rows of pairs, labelled answers, classes and rollouts, as well-known data sets and other trainers write them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "host/data/dialogue_text.hpp"
#include "host/data/document.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

constexpr auto kPreference = DataFormat::kPreference;
constexpr auto kLabelled = DataFormat::kLabelled;
constexpr auto kClassification = DataFormat::kClassification;
constexpr auto kRollouts = DataFormat::kRollouts;
constexpr auto kDistillation = DataFormat::kDistillation;

template <class T>
T parse_as(DataFormat format, const std::string& json, ReadNotes* notes = nullptr) {
  return std::get<T>(parse_row(set_of(format), json, notes));
}

// "role:text" of each message, with "|" where the answer begins.
std::string shown(const ChatRecord& chat) {
  std::string text;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (i > 0) text += chat.first_trained == i ? " | " : " ";
    text += chat.messages[i].role + ":" + chat.messages[i].text();
  }
  return text;
}

std::string pair_of(const DataSetConfig& set, const std::string& json) {
  const auto pair = std::get<PreferenceRecord>(parse_row(set, json));
  EXPECT_EQ(pair.chosen.first_trained, pair.rejected.first_trained);
  return shown(pair.chosen) + " > " + shown(pair.rejected);
}

struct Source {
  const char* name;
  std::string row;
  const char* pair;
};

class PairsOf : public testing::TestWithParam<Source> {};

TEST_P(PairsOf, HaveTheirPromptInFrontOfBothAnswers) {
  EXPECT_EQ(pair_of(set_of(kPreference), GetParam().row), GetParam().pair);
}

INSTANTIATE_TEST_SUITE_P(
    Sources, PairsOf,
    testing::Values(
        Source{"TrlExplicitTexts", R"({"prompt":"q","chosen":"a","rejected":"b"})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"TrlExplicitMessages",
               R"({"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q"}],
                   "chosen":[{"role":"assistant","content":"a"}],"rejected":[{"role":"assistant","content":"b"}]})",
               "system:s user:q | assistant:a > system:s user:q | assistant:b"},
        Source{"TrlImplicitMessages",
               R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                   "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"TrlImplicitOneStartsTheOther",
               R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                   "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},
                               {"role":"user","content":"r"},{"role":"assistant","content":"b"}]})",
               "user:q | assistant:a > user:q | assistant:a user:r assistant:b"},
        Source{"UltraFeedback",
               R"({"prompt":"q","prompt_id":"7","score_chosen":8.5,"score_rejected":7.0,
                   "messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                   "chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                   "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"UltraFeedbackOfSeveralTurns",
               R"({"prompt":"q2",
                   "chosen":[{"role":"user","content":"q1"},{"role":"assistant","content":"a1"},
                             {"role":"user","content":"q2"},{"role":"assistant","content":"a"}],
                   "rejected":[{"role":"user","content":"q1"},{"role":"assistant","content":"a1"},
                               {"role":"user","content":"q2"},{"role":"assistant","content":"b"}]})",
               "user:q1 assistant:a1 user:q2 | assistant:a > user:q1 assistant:a1 user:q2 | assistant:b"},
        Source{"UltraFeedbackWithASystemMessage",
               R"({"prompt":[{"role":"user","content":"q"}],
                   "chosen":[{"role":"system","content":"s"},{"role":"user","content":"q"},
                             {"role":"assistant","content":"a"}],
                   "rejected":[{"role":"system","content":"s"},{"role":"user","content":"q"},
                               {"role":"assistant","content":"b"}]})",
               "system:s user:q | assistant:a > system:s user:q | assistant:b"},
        Source{"HhRlhf",
               R"({"chosen":"\n\nHuman: q1\n\nAssistant: a1\n\nHuman: q2\n\nline\n\nAssistant: a ",
                   "rejected":"\n\nHuman: q1\n\nAssistant: a1\n\nHuman: q2\n\nline\n\nAssistant: b"})",
               "user:q1 assistant:a1 user:q2\n\nline | assistant:a > user:q1 assistant:a1 user:q2\n\nline | "
               "assistant:b"},
        Source{
            "HhRlhfWithAPrompt",
            R"({"prompt":"\n\nHuman: q1\n\nAssistant: a1\n\nHuman: q2\n\nAssistant:","chosen":" a","rejected":" b"})",
            "user:q1 assistant:a1 user:q2 | assistant: a > user:q1 assistant:a1 user:q2 | assistant: b"},
        Source{"HhRlhfAsAnAnswer",
               R"({"prompt":"write one","chosen":"Human: x\n\nAssistant: y","rejected":"Human: x\n\nAssistant: z"})",
               "user:write one | assistant:Human: x\n\nAssistant: y > user:write one | assistant:Human: x\n\n"
               "Assistant: z"},
        Source{"Orca", R"({"system":"s","question":"q","chosen":"a","rejected":"b"})",
               "system:s user:q | assistant:a > system:s user:q | assistant:b"},
        Source{"OrcaWithAnEmptySystem", R"({"system":"","question":"q","chosen":"a","rejected":"b"})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"LlamaFactoryAlpaca",
               R"({"instruction":"q","input":"i","system":"s","history":[["q0","a0"]],"chosen":"a","rejected":"b"})",
               "system:s user:q0 assistant:a0 user:q\ni | assistant:a > system:s user:q0 assistant:a0 user:q\ni | "
               "assistant:b"},
        Source{"LlamaFactorySharegpt",
               R"({"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},
                   "rejected":{"from":"gpt","value":"b"}})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"AxolotlChatTemplate",
               R"({"messages":[{"role":"user","content":"q"}],"chosen":{"role":"assistant","content":"a"},
                   "rejected":{"role":"assistant","content":"b"}})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"AxolotlArgilla", R"({"instruction":"q","chosen_response":"a","rejected_response":"b"})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"AxolotlIcr", R"({"system":"s","input":"q","chosen":"a","rejected":"b"})",
               "system:s user:q | assistant:a > system:s user:q | assistant:b"},
        Source{"AxolotlIntel", R"({"question":"q","chosen":"a","rejected":"b"})",
               "user:q | assistant:a > user:q | assistant:b"},
        Source{"Colossal",
               R"({"context":[{"from":"human","content":"q1"},{"from":"assistant","content":"a1"},
                              {"from":"human","content":"q2"}],
                   "chosen":[{"from":"assistant","content":"a"}],"rejected":[{"from":"assistant","content":"b"}]})",
               "user:q1 assistant:a1 user:q2 | assistant:a > user:q1 assistant:a1 user:q2 | assistant:b"},
        Source{"EmptyColumnsOfACsvFile", R"({"prompt":"","question":"q","input":"","chosen":"a","rejected":"b"})",
               "user:q | assistant:a > user:q | assistant:b"}),
    [](const auto& param) { return param.param.name; });

TEST(Pairs, OfUltraFeedbackCountTheListThatRepeatsTheBetterAnswer) {
  ReadNotes notes;
  parse_as<PreferenceRecord>(
      kPreference,
      R"({"prompt":"q","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
          "chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
          "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
      &notes);
  EXPECT_EQ(notes.unused_columns, (std::map<std::string, uint64_t>{{"messages", 1}}));
}

TEST(Pairs, OfHhRlhfAreCounted) {
  ReadNotes notes;
  parse_as<PreferenceRecord>(
      kPreference, R"({"chosen":"\n\nHuman: q\n\nAssistant: a","rejected":"\n\nHuman: q\n\nAssistant: b"})", &notes);
  ASSERT_EQ(notes.changes.size(), 1u);
  EXPECT_TRUE(contains(notes.changes.begin()->first, "are read as conversations"));
}

TEST(Pairs, MayHaveAMarginThatIsATextOfANumber) {
  const auto margin = [](const std::string& json) {
    return parse_as<PreferenceRecord>(kPreference,
                                      R"({"prompt":"q","chosen":"a","rejected":"b","margin":)" + json + "}")
        .margin;
  };
  EXPECT_EQ(margin("-0.5"), -0.5);
  EXPECT_EQ(margin("3"), 3.0);
  EXPECT_EQ(margin(R"(" +1.5e1 ")"), 15.0);
  EXPECT_EQ(margin(R"(" ")"), std::nullopt);
  EXPECT_EQ(margin("null"), std::nullopt);
  for (const char* bad : {R"("nan")", R"("inf")", R"("1e999")", R"("1.5x")", R"("+-1")", "true", "[1]"})
    EXPECT_TRUE(contains(error_of([&] { margin(bad); }), "\"margin\" is ")) << bad;
  EXPECT_EQ(margin("1e30"), 1e30);
  EXPECT_TRUE(contains(error_of([&] { margin("-1.1e30"); }), "not a number from -1e30 to 1e30"));
}

TEST(Numbers, ThatAreTooLargeAreRefused) {
  const std::tuple<DataFormat, const char*, const char*> cases[] = {
      {kPreference, R"({"prompt":"q","chosen":"a","rejected":"b","margin":-1e300})", "\"margin\" is "},
      {kClassification, R"({"text":"t","value":1e31})", "\"value\" is "},
      {kClassification, R"({"text":"t","values":[0,-1e300]})", "\"values[1]\" is "},
      {kRollouts, R"({"prompt":"q","completions":[{"text":"a","reward":1e300}]})", "\"completions[0].reward\" is "},
      {kRollouts, R"({"prompt":"q","completions":[{"text":"a","reward":1,"logps":[-1e31]}]})",
       "\"completions[0].logps[0]\" is "},
  };
  for (const auto& [format, row, what] : cases) {
    const std::string text = error_of([&] { parse_row(set_of(format), row); });
    EXPECT_TRUE(contains(text, what)) << text;
    EXPECT_TRUE(contains(text, ", not a number from -1e30 to 1e30")) << text;
  }
}

TEST(Pairs, ColumnsChooseBetweenKeysThatMeanTheSame) {
  const std::string row = R"({"question":"q","chosen":"a","chosen_response":"x","rejected":"b"})";
  const std::string refused = error_of([&] { pair_of(set_of(kPreference), row); });
  EXPECT_TRUE(contains(refused, "\"chosen\" and \"chosen_response\" are both there, and mean the same"));
  EXPECT_TRUE(contains(refused, "hint: choose one by columns = { chosen = "));
  DataSetConfig set = set_of(kPreference);
  set.columns = {{"chosen", "chosen_response"}};
  EXPECT_EQ(pair_of(set, row), "user:q | assistant:x > user:q | assistant:b");
  set.columns = {{"chosen", "chosen"}};
  ReadNotes notes;
  parse_row(set, row, &notes);
  EXPECT_EQ(notes.unused_columns, (std::map<std::string, uint64_t>{{"chosen_response", 1}}));
}

TEST(DialogueText, NeedsTurnsOfBoth) {
  EXPECT_TRUE(is_dialogue_text("\n\nHuman: a\n\nAssistant: b"));
  EXPECT_TRUE(is_dialogue_text(" Human:\n\nAssistant:"));
  for (const char* text : {"", "Human: a", "Human: a\nAssistant: b", "x\n\nHuman: a\n\nAssistant: b", "Humans\n\n"})
    EXPECT_FALSE(is_dialogue_text(text)) << text;
  const std::vector<Message> messages = dialogue_messages("Human: a\n\n\nAssistant:b\n\nHuman:");
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].text(), "a");
  EXPECT_EQ(messages[1].text(), "b");
  EXPECT_EQ(messages[2].text(), "");
}

std::string labelled_of(const std::string& json) {
  const auto record = parse_as<LabelledRecord>(kLabelled, json);
  return fmt::format("{} {}", shown(record.answer), record.is_good ? "good" : "bad");
}

TEST(SplitPairs, HaveNoMargin) {
  DataSetConfig set = set_of(kPreference);
  set.split_pairs = true;
  ReadNotes notes;
  const auto pair =
      std::get<PreferenceRecord>(parse_row(set, R"({"prompt":"q","chosen":"a","rejected":"b","margin":0.5})", &notes));
  EXPECT_TRUE(pair.is_split);
  EXPECT_FALSE(pair.margin);
  EXPECT_EQ(notes.unused_columns, (std::map<std::string, uint64_t>{{"margin", 1}}));
  EXPECT_FALSE(parse_as<PreferenceRecord>(kPreference, R"({"prompt":"q","chosen":"a","rejected":"b"})").is_split);
}

TEST(Pairs, HaveNoMarginIfTheObjectiveReadsNone) {
  DataSetConfig set = set_of(kPreference);
  set.reads_margins = false;
  ReadNotes notes;
  const auto pair =
      std::get<PreferenceRecord>(parse_row(set, R"({"prompt":"q","chosen":"a","rejected":"b","margin":0.5})", &notes));
  EXPECT_FALSE(pair.is_split);
  EXPECT_FALSE(pair.margin);
  EXPECT_EQ(notes.unused_columns, (std::map<std::string, uint64_t>{{"margin", 1}}));
}

TEST(LabelledRow, IsAnAnswerThatIsGoodOrBad) {
  EXPECT_EQ(labelled_of(R"({"prompt":"q","completion":"a","label":true})"), "user:q | assistant:a good");
  EXPECT_EQ(labelled_of(R"({"prompt":[{"role":"user","content":"q"}],
                            "completion":[{"role":"assistant","content":"a"}],"label":false})"),
            "user:q | assistant:a bad");
  EXPECT_EQ(labelled_of(R"({"question":"q","completion":"a","system":"s","label":1})"),
            "system:s user:q | assistant:a good");
  EXPECT_EQ(labelled_of(R"({"prompt":"q","completion":[{"role":"user","content":"q"},
                            {"role":"assistant","content":"a"}],"label":"False"})"),
            "user:q | assistant:a bad");
  EXPECT_EQ(labelled_of(R"({"prompt":"q","completion":"a","label":0.0})"), "user:q | assistant:a bad");
}

TEST(LabelledRow, OfLlamaFactoryHasAKtoTag) {
  EXPECT_EQ(labelled_of(R"({"instruction":"q","input":"i","output":"a","kto_tag":true})"),
            "user:q\ni | assistant:a good");
  EXPECT_EQ(labelled_of(R"({"messages":[{"role":"user","content":"q1"},{"role":"assistant","content":"a1"},
                            {"role":"user","content":"q"},{"role":"assistant","content":"a"}],"kto_tag":false})"),
            "user:q1 assistant:a1 user:q | assistant:a bad");
  EXPECT_EQ(labelled_of(R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],"label":"1"})"),
            "user:q | assistant:a good");
}

ClassifiedRecord classified(const std::string& json, const std::vector<std::string>& classes = {}) {
  DataSetConfig set = set_of(kClassification);
  set.classes = classes;
  return std::get<ClassifiedRecord>(parse_row(set, json));
}

TEST(ClassRow, IsATextOrAConversation) {
  EXPECT_EQ(std::get<TextRecord>(classified(R"({"text":"t","label":2})").input).text, "t");
  const auto chat = [](const std::string& json) {
    const ChatRecord record = std::get<ChatRecord>(classified(json).input);
    EXPECT_FALSE(record.first_trained.has_value());
    return shown(record);
  };
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"label":0})"),
            "user:q assistant:a");
  EXPECT_EQ(chat(R"({"conversations":[{"from":"human","value":"q"}],"system":"s","label":0})"), "system:s user:q");
  EXPECT_EQ(chat(R"({"prompt":"q","label":0})"), "user:q");
  EXPECT_EQ(chat(R"({"prompt":"q","completion":"a","value":3.5})"), "user:q assistant:a");
}

// A score belongs to one answer, and a bare prompt has none.
TEST(ClassRow, IsOneAnswerIfItIsScored) {
  DataSetConfig set = set_of(kClassification);
  const auto refusal = [&](const std::string& json) { return error_of([&] { parse_row(set, json); }); };
  EXPECT_NO_THROW(parse_row(set, R"({"prompt":"q","label":1,"chosen":"a","rejected":"b"})"));
  set.has_targets = false;
  const std::string pair = refusal(R"({"prompt":"q","chosen":"a","rejected":"b"})");
  EXPECT_TRUE(contains(pair, "a.jsonl:7:")) << pair;
  EXPECT_TRUE(contains(pair, "has \"chosen\" and \"rejected\", and a row that is scored has one answer")) << pair;
  EXPECT_TRUE(contains(pair, "a row {\"prompt\": …, \"completion\": …} for each answer")) << pair;
  EXPECT_TRUE(contains(refusal(R"({"prompt":"q","completion":"a","rejected":"b"})"), "the row has \"rejected\""));
  EXPECT_NO_THROW(parse_row(set, R"({"prompt":"q"})")) << "a classifier may be trained on prompts";
  EXPECT_NO_THROW(parse_row(set, R"({"text":"t","chosen":null})"));
  set.needs_answer = true;
  EXPECT_TRUE(contains(refusal(R"({"prompt":"q"})"), "\"prompt\" has no answer"));
  EXPECT_TRUE(contains(refusal(R"({"prompt":[{"role":"user","content":"q"}]})"), "\"prompt\" has no answer"));
  for (const char* json : {R"({"prompt":"q","completion":"a"})", R"({"text":"t"})",
                           R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
                           R"({"prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})"})
    EXPECT_NO_THROW(parse_row(set, json)) << json;
}

TEST(ClassRow, HasAClassClassesOrValues) {
  const auto targets = [](const std::string& json, const std::vector<std::string>& classes = {}) {
    return classified(R"({"text":"t",)" + json + "}", classes).targets;
  };
  EXPECT_EQ(targets(R"("label":3)"), (std::vector<double>{3}));
  EXPECT_EQ(targets(R"("label":"3")"), (std::vector<double>{3})) << "as in a .csv file";
  EXPECT_EQ(targets(R"("label":true)"), (std::vector<double>{1}));
  EXPECT_EQ(targets(R"("labels":[0,1,1])"), (std::vector<double>{0, 1, 1}));
  EXPECT_EQ(targets(R"("value":-2.5)"), (std::vector<double>{-2.5}));
  EXPECT_EQ(targets(R"("value":" 2.5")"), (std::vector<double>{2.5}));
  EXPECT_TRUE(std::isnan(targets(R"("value":null)").at(0)));
  const std::vector<double> values = targets(R"("values":[1,null,0.5])");
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[0], 1);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], 0.5);
}

TEST(ClassRow, MayNameItsClasses) {
  const std::vector<std::string> classes{"sport", "7", "news"};
  const auto targets = [&](const std::string& json) {
    return classified(R"({"text":"t",)" + json + "}", classes).targets;
  };
  EXPECT_EQ(targets(R"("label":"news")"), (std::vector<double>{2}));
  EXPECT_EQ(targets(R"("label":"7")"), (std::vector<double>{1})) << "a name comes before an index";
  EXPECT_EQ(targets(R"("label":0)"), (std::vector<double>{0}));
  EXPECT_EQ(targets(R"("labels":["news","sport"])"), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(targets(R"("labels":[])"), (std::vector<double>{0, 0, 0}));
  EXPECT_TRUE(contains(error_of([&] { targets(R"("label":"art")"); }),
                       "\"label\" is \"art\", not in data.classes\nhint: data.classes has \"sport\", \"7\", \"news\""));
  EXPECT_TRUE(contains(error_of([&] { targets(R"("labels":["news","art"])"); }), "\"labels[1]\" is \"art\", not in"));
  for (const char* index : {"3", "-1", "0.5"})
    EXPECT_TRUE(contains(error_of([&] { targets(std::string(R"("label":)") + index); }),
                         fmt::format("\"label\" is {}, and data.classes has 3 names", index)));
}

TEST(DistillationRow, HasListsOfIdsAndLogProbabilities) {
  const auto record =
      parse_as<DistilledRecord>(kDistillation, R"({"prompt":"q","completion":"a","target_token_ids":[[5,6],[],[7]],
                         "target_logprobs":[[-0.5,-1],[],[-2]]})");
  EXPECT_EQ(shown(std::get<ChatRecord>(record.answer)), "user:q | assistant:a");
  EXPECT_EQ(record.teacher, (TeacherFacts{{2, 0, 1}, {5, 6, 7}, {-0.5f, -1, -2}}));
}

TEST(DistillationRow, MayMaskEntries) {
  const auto record = parse_as<DistilledRecord>(
      kDistillation, R"({"input_ids":[1,2,3],"labels":[-100,2,3],"target_token_ids":[[0,0],[5,6],[7,7]],
                         "target_logprobs":[[null,9],[-1,-2],[-3,null]],"target_mask":[[0,0],[1,true],[1,false]]})");
  const auto& tokens = std::get<TokensRecord>(record.answer);
  EXPECT_EQ(tokens.ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(tokens.labels, (std::vector<int32_t>{-100, 2, 3}));
  EXPECT_EQ(record.teacher, (TeacherFacts{{0, 2, 1}, {5, 6, 7}, {-1, -2, -3}}));
}

TEST(DistillationRow, MayHaveEntriesAsServersGiveThem) {
  const auto record = parse_as<DistilledRecord>(
      kDistillation, R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                         "logprobs":[[{"token":"token_id:5","logprob":-0.5},{"token_id":6,"logprob":-9999999}],[]]})");
  EXPECT_EQ(shown(std::get<ChatRecord>(record.answer)), "user:q | assistant:a");
  EXPECT_EQ(record.teacher, (TeacherFacts{{2, 0}, {5, 6}, {-0.5f, -1e4f}}));
}

TEST(RolloutsRow, HasAllAnswersToAPrompt) {
  const auto record = parse_as<RolloutsRecord>(
      kRollouts, R"({"prompt":"q","system":"s","completions":[{"text":"a","reward":1},{"content":"b","role":"assistant",
                     "reward":-0.5}]})");
  ASSERT_EQ(record.rollouts.size(), 2u);
  EXPECT_EQ(shown(record.rollouts[0].answer), "system:s user:q | assistant:a");
  EXPECT_EQ(shown(record.rollouts[1].answer), "system:s user:q | assistant:b");
  EXPECT_EQ(record.rollouts[0].reward, 1);
  EXPECT_EQ(record.rollouts[1].reward, -0.5);
  EXPECT_TRUE(record.rollouts[0].logps.empty());
}

TEST(RolloutsRow, MayHaveLogProbabilitiesAndSeveralMessagesInAnAnswer) {
  ReadNotes notes;
  const auto record = parse_as<RolloutsRecord>(kRollouts, R"({"messages":[{"role":"user","content":"q"}],"completions":[
                     {"messages":[{"role":"assistant","content":"a"},{"role":"tool","content":"1"},
                                  {"role":"assistant","content":"b"}],"reward":0,"logps":[-0.5,0,-2],"finish":"stop"}]})",
                                               &notes);
  EXPECT_EQ(shown(record.rollouts.at(0).answer), "user:q | assistant:a tool:1 assistant:b");
  EXPECT_EQ(record.rollouts[0].logps, (std::vector<double>{-0.5, 0, -2}));
  EXPECT_EQ(notes.unused_columns, (std::map<std::string, uint64_t>{{"completions[].finish", 1}}));
}

struct BadUnit {
  DataFormat format;
  std::string row;
  const char* message;
};

class BadUnits : public testing::TestWithParam<BadUnit> {};

TEST_P(BadUnits, AreRefusedWithTheirLineAndKey) {
  const std::string message = error_of([&] { parse_row(set_of(GetParam().format), GetParam().row); });
  EXPECT_TRUE(contains(message, "a.jsonl:7:"));
  EXPECT_TRUE(contains(message, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, BadUnits,
    testing::Values(
        BadUnit{kPreference, R"({"chosen":"x yes ","rejected":"x no"})", "no message comes before"},
        BadUnit{kPreference, R"({"chosen":"\n\nHuman: a\n\nAssistant: b","rejected":"\n\nHuman: c\n\nAssistant: d"})",
                "no message comes before"},
        BadUnit{kPreference, R"({"prompt":"q","question":"q","chosen":"a","rejected":"b"})",
                "\"prompt\" and \"question\" are both there"},
        BadUnit{kPreference, R"({"prompt":"q","input":"i","chosen":"a","rejected":"b"})",
                "\"prompt\" and \"input\" are both there: which comes before the answers?"},
        BadUnit{kPreference, R"({"prompt":"q","messages":[{"role":"user","content":"r"}],"chosen":"a","rejected":"b"})",
                "\"prompt\" and \"messages\" are both there"},
        BadUnit{kPreference, R"({"input":5,"chosen":"a","rejected":"b"})", "\"input\" is 5, not a string"},
        BadUnit{kPreference, R"({"instruction":"q","history":[["a"]],"chosen":"a","rejected":"b"})",
                "\"history[0]\" has 1 texts"},
        BadUnit{kPreference, R"({"instruction":["q"],"chosen":"a","rejected":"b"})",
                "\"instruction\" is a list, not a string"},
        BadUnit{kPreference, R"({"text":"a","rejected":"b"})", "key \"chosen\" is missing"},
        BadUnit{DataFormat::kText, R"({"chosen_response":"a","rejected_response":"b"})",
                "set format = \"preference\" with train.task = \"preference\" or \"reward\"; columns = { text = "
                "\"chosen_response\" } trains the better answers alone"}));

INSTANTIATE_TEST_SUITE_P(
    Labelled, BadUnits,
    testing::Values(
        BadUnit{kLabelled, R"({"prompt":"q","completion":"a"})", "key \"label\" is missing"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":"a","label":null})", "\"label\" is null"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":"a","label":2})", "\"label\" is 2, not true, false, 1 or 0"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":"a","label":"good"})",
                "\"label\" is \"good\", not true, false, 1 or 0\nhint: true: the answer is desirable"},
        BadUnit{kLabelled, R"({"prompt":"q","label":true})", "key \"completion\" is missing"},
        BadUnit{kLabelled, R"({"completion":"a","label":true})", "no message comes before the answer"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":[],"label":true})", "\"completion\" has no message"},
        BadUnit{kLabelled, R"({"messages":[{"role":"assistant","content":"a"}],"label":true})",
                "no message comes before the answer"},
        BadUnit{kLabelled, R"({"messages":[{"role":"user","content":"a"}],"label":true})",
                "the last message of \"messages\" is of \"user\", and an answer is the assistant's"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":[{"role":"user","content":"x"},
                               {"role":"assistant","content":"a"}],"label":true})",
                "\"completion\" begins with neither the prompt nor an answer"},
        BadUnit{kLabelled, R"({"prompt":"q","completion":"a","label":true,"kto_tag":true})",
                "\"label\" and \"kto_tag\" are both there"},
        BadUnit{kLabelled, R"({"prompt":"q","chosen":"a","rejected":"b"})", "set format = \"preference\""},
        BadUnit{DataFormat::kText, R"({"prompt":"q","completion":"a","label":true})",
                "set format = \"labelled\" with train.task = \"preference\""}));

INSTANTIATE_TEST_SUITE_P(
    Classes, BadUnits,
    testing::Values(
        BadUnit{kClassification, R"({"text":"t"})", "key \"label\" is missing"},
        BadUnit{kClassification, R"({"text":"t","label":null})", "\"label\" is null"},
        BadUnit{kClassification, R"({"label":1})", "key \"text\" is missing"},
        BadUnit{kClassification, R"({"text":"t","label":"sport"})",
                "\"label\" is \"sport\", not the index of a class\nhint: data.classes = "},
        BadUnit{kClassification, R"({"text":"t","label":[1]})", "\"label\" is a list, not a number"},
        BadUnit{kClassification, R"({"text":"t","labels":["sport"]})", "\"labels[0]\" is \"sport\", not the index"},
        BadUnit{kClassification, R"({"text":"t","labels":[1,"sport"]})", "\"labels[1]\" is \"sport\", not a number"},
        BadUnit{kClassification, R"({"text":"t","labels":[]})", "\"labels\" is an empty list"},
        BadUnit{kClassification, R"({"text":"t","values":"1"})", "\"values\" is \"1\", not a list"},
        BadUnit{kClassification, R"({"text":"t","values":["1"]})", "\"values[0]\" is \"1\", not a number"},
        BadUnit{kClassification, R"({"text":"t","value":"x"})", "\"value\" is \"x\", not a number"},
        BadUnit{kClassification, R"({"text":"t","label":1,"value":2})",
                "\"label\" and \"value\" are both there: which is the target?"},
        BadUnit{kClassification, R"({"text":"t","messages":[{"role":"user","content":"q"}],"label":1})",
                "\"text\" and \"messages\" are both there: which is classified?"},
        BadUnit{kClassification, R"({"text":"t","completion":"a","label":1})", "\"completion\" needs a prompt"},
        BadUnit{DataFormat::kMessages, R"({"text":"t","label":1})",
                "set format = \"classification\" with train.task = \"classify\""}));

std::string distilled(const std::string& more) { return R"({"prompt":"q","completion":"a",)" + more + "}"; }

INSTANTIATE_TEST_SUITE_P(
    Distillation, BadUnits,
    testing::Values(
        BadUnit{kDistillation, R"({"prompt":"q","completion":"a"})",
                "the row has neither \"target_token_ids\" nor \"logprobs\""},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1]])"), "but no \"target_logprobs\""},
        BadUnit{kDistillation, distilled(R"("logprobs":[],"target_token_ids":[[1]])"), "has both \"logprobs\" and"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1],[2]],"target_logprobs":[[-1]])"),
                "\"target_logprobs\" has 1 entries, \"target_token_ids\" has 2"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1,2]],"target_logprobs":[[-1]])"),
                "\"target_logprobs[0]\" has 1 entries, \"target_token_ids[0]\" has 2"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[-1]],"target_logprobs":[[-1]])"),
                "\"target_token_ids[0][0]\" is -1, the vocabulary has"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1]],"target_logprobs":[[0.5]])"),
                "\"target_logprobs[0][0]\" is 0.5, and a log-probability is at most 0"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1]],"target_logprobs":[["-1"]])"), "not a number"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1,1]],"target_logprobs":[[-1,-2]])"),
                "\"target_token_ids[0]\" has the id 1 twice"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1,2]],"target_logprobs":[[-0.1,-0.2]])"),
                "add up to 1.7236, and those of tokens to at most 1"},
        BadUnit{kDistillation, distilled(R"("target_token_ids":[[1]],"target_logprobs":[[-1]],"target_mask":[[2]])"),
                "\"target_mask[0][0]\" is 2, not 0, 1, true or false"},
        BadUnit{kDistillation, distilled(R"("logprobs":[[{"token":"the","logprob":-1}]])"),
                "is \"the\", expected \"token_id:\" and an id"},
        BadUnit{kDistillation, distilled(R"("logprobs":[[{"token_id":1}]])"), "\"logprobs[0][0].logprob\" is missing"},
        BadUnit{kDistillation, R"({"input_ids":[1],"prompt":"q","logprobs":[]})",
                "the row has both \"input_ids\" and \"prompt\""}));

INSTANTIATE_TEST_SUITE_P(
    Rollouts, BadUnits,
    testing::Values(
        BadUnit{kRollouts, R"({"prompt":"q","completion":"a","reward":1})",
                "the row has one answer, \"completion\", and no \"completions\"\nhint: a row has all answers"},
        BadUnit{kRollouts, R"({"prompt":"q"})", "key \"completions\" is missing"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":"a"})", "\"completions\" is \"a\", not a list"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[]})", "\"completions\" has no answer"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":["a"]})", "\"completions[0]\" is \"a\", not an object"},
        BadUnit{kRollouts, R"({"completions":[{"text":"a","reward":1}]})", "no message comes before the answers"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"reward":1}]})", "completions[0] has neither \"text\""},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"text":"a"}]})", "\"completions[0].reward\" is missing"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"text":"a","reward":"1"}]})",
                "\"completions[0].reward\" is \"1\", not a number"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"text":"a","content":"b","reward":1}]})",
                "\"completions[0].text\" and \"completions[0].content\" are both there"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"content":"a","role":"user","reward":1}]})",
                "\"completions[0].role\" is \"user\", and an answer is the assistant's"},
        BadUnit{kRollouts, R"({"prompt":"q","completions":[{"text":"a","reward":1,"logps":[-1,"x"]}]})",
                "\"completions[0].logps[1]\" is \"x\", not a number"},
        BadUnit{kRollouts,
                R"({"prompt":"q","completions":[{"text":"a","reward":1},{"text":"b","reward":0,"logps":[-1]}]})",
                "\"logps\", but completions[0] has none"},
        BadUnit{DataFormat::kText, R"({"prompt":"q","completions":[]})",
                "set format = \"rollouts\" with train.task = \"policy\""}));

}  // namespace
}  // namespace chassis
