// Records from rows of every format.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "host/data/document.hpp"
#include "tests/host/data/rows_support.hpp"

namespace chassis {
namespace {

template <class T>
T parse_as(DataFormat format, const std::string& json) {
  return std::get<T>(parse_row(set_of(format), json));
}

// "role:text" of each message.
std::string shown(const std::vector<Message>& messages) {
  std::string text;
  for (const Message& message : messages) {
    text += (text.empty() ? "" : " | ") + message.role + ":" + (message.has_content ? message.text() : "-");
    if (!message.tool_calls_json.empty()) text += " " + message.tool_calls_json;
  }
  return text;
}

std::string chat_of(const DataSetConfig& config, const std::string& json) {
  return shown(std::get<ChatRecord>(parse_row(config, json)).messages);
}

std::string chat_of(DataFormat format, const std::string& json) { return chat_of(set_of(format), json); }

TEST(TextRow, IsADocument) {
  EXPECT_EQ(parse_as<TextRecord>(DataFormat::kText, R"({"text":"a\u0000\n\u00e9"})").text,
            std::string("a\0\n\xC3\xA9", 5));
  EXPECT_EQ(parse_as<TextRecord>(DataFormat::kText, R"({"text":""})").text, "");
}

TEST(AlpacaRow, JoinsInstructionAndInput) {
  EXPECT_EQ(chat_of(DataFormat::kAlpaca, R"({"instruction":"add","input":"1 2","output":"3"})"),
            "user:add\n1 2 | assistant:3");
  EXPECT_EQ(chat_of(DataFormat::kAlpaca, R"({"instruction":"hi","input":"","output":"ho","system":null})"),
            "user:hi | assistant:ho");
}

TEST(AlpacaRow, HasItsHistoryInFront) {
  const std::string row = R"({"instruction":"q3","output":"a3","system":"be","history":[["q1","a1"],["q2","a2"]]})";
  EXPECT_EQ(chat_of(DataFormat::kAlpaca, row),
            "system:be | user:q1 | assistant:a1 | user:q2 | assistant:a2 | user:q3 | assistant:a3");
  EXPECT_FALSE(parse_as<ChatRecord>(DataFormat::kAlpaca, row).first_trained.has_value());
  EXPECT_EQ(chat_of(DataFormat::kAlpaca, R"({"instruction":"q","output":"a","history":""})"), "user:q | assistant:a");
}

TEST(ShareGptRow, KnowsTheWordsForRoles) {
  EXPECT_EQ(chat_of(DataFormat::kShareGpt,
                    R"({"conversations":[{"from":"system","value":"s"},{"from":"human","value":"h"},
                        {"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},
                        {"from":"observation","value":"o"},{"from":"gpt","value":"g"}]})"),
            "system:s | user:h | assistant:- "
            R"([{"type":"function","function":{"name":"f","arguments":{"x":1}}}])"
            " | tool:o | assistant:g");
}

TEST(ShareGptRow, MayHaveAnyOrderASystemColumnAndTools) {
  const auto chat = parse_as<ChatRecord>(
      DataFormat::kShareGpt,
      R"({"conversations":[{"from":"gpt","value":"a"},{"from":"gpt","value":"b"}],"system":"s","tools":"[{\"name\": \"f\"}]"})");
  EXPECT_EQ(shown(chat.messages), "system:s | assistant:a | assistant:b");
  EXPECT_EQ(chat.tools_json, R"([{"name":"f"}])");
  EXPECT_EQ(chat_of(DataFormat::kShareGpt, R"({"conversations":[{"from":"system","value":"s"}],"system":"s"})"),
            "system:s");
  EXPECT_EQ(parse_as<ChatRecord>(DataFormat::kShareGpt, R"({"conversations":[],"system":"s"})").messages.size(), 0u);
}

TEST(MessagesRow, KeepsPartsAndTheirMarks) {
  const auto chat = parse_as<ChatRecord>(DataFormat::kMessages,
                                         R"({"messages":[{"role":"user","content":"q","name":"Ann"},
      {"role":"assistant","content":[{"type":"text","text":"a","train":false},{"type":"text","text":"b"}],"train":true},
      {"role":"assistant","content":"c","weight":0},{"role":"assistant","content":"d","weight":1.0}]})");
  ASSERT_EQ(chat.messages.size(), 4u);
  EXPECT_EQ(chat.messages[0].name, "Ann");
  EXPECT_FALSE(chat.messages[0].content_is_parts);
  const Message& parts = chat.messages[1];
  EXPECT_TRUE(parts.content_is_parts);
  EXPECT_EQ(parts.text(), "ab");
  EXPECT_EQ(parts.content[0].train, false);
  EXPECT_EQ(parts.content[1].train, std::nullopt);
  EXPECT_EQ(parts.train, true);
  EXPECT_EQ(chat.messages[2].train, false);
  EXPECT_EQ(chat.messages[3].train, std::nullopt);
}

TEST(MessagesRow, HasToolCallsWhoseArgumentsAreObjects) {
  const auto chat = parse_as<ChatRecord>(DataFormat::kMessages,
                                         R"({"messages":[{"role":"assistant","content":null,"tool_calls":[
      {"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\": [1, 2.5]}"}},
      {"name":"g","arguments":{"y":"\u00e9\""},"id":"c2"},{"function":{"name":"h","arguments":""}},
      {"function":{"name":"i","arguments":null}}]},
      {"role":"tool","tool_call_id":"c1","content":"1"}],"tools":[{"type":"function"}]})");
  EXPECT_FALSE(chat.messages[0].has_content);
  EXPECT_EQ(chat.messages[0].tool_calls_json,
            R"([{"id":"c1","type":"function","function":{"name":"f","arguments":{"x":[1,2.5]}}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":{"y":"é\""}}},)"
            R"({"function":{"name":"h","arguments":{}}},)"
            R"({"function":{"name":"i","arguments":{}}}])");
  EXPECT_EQ(chat.messages[1].tool_call_id, "c1");
  EXPECT_EQ(chat.tools_json, R"([{"type":"function"}])");
}

TEST(MessagesRow, ReadsTheCallsOfOldRows) {
  const std::string expected =
      R"(user:q | assistant:- [{"type":"function","function":{"name":"f","arguments":{"x":1}}}] | tool:1 | assistant:a)";
  for (const char* call :
       {R"({"name":"f","arguments":"{\"x\": 1}"})", R"("{\"name\":\"f\",\"arguments\":{\"x\":1}}")"}) {
    EXPECT_EQ(
        chat_of(DataFormat::kMessages,
                std::string(R"({"messages":[{"role":"user","content":"q"},
                          {"role":"assistant","content":null,"function_call":)") +
                    call + R"(},{"role":"function","name":"f","content":"1"},{"role":"assistant","content":"a"}]})"),
        expected);
  }
  EXPECT_EQ(chat_of(DataFormat::kMessages, R"({"messages":[{"role":"user","content":"q","function_call":null}]})"),
            "user:q");
}

TEST(MessagesRow, MayBeHeldAsJsonText) {
  const auto chat = parse_as<ChatRecord>(
      DataFormat::kMessages,
      R"({"messages":"[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"name\":\"f\",\"arguments\":\"{}\"}]}]","tools":"[{\"name\":\"f\"}]"})");
  EXPECT_EQ(shown(chat.messages),
            R"(user:q | assistant:- [{"type":"function","function":{"name":"f","arguments":{}}}])");
  EXPECT_EQ(chat.tools_json, R"([{"name":"f"}])");
  EXPECT_EQ(chat_of(DataFormat::kShareGpt, R"({"conversations":"[{\"from\":\"human\",\"value\":\"q\"}]"})"), "user:q");
  EXPECT_EQ(chat_of(DataFormat::kMessages, R"({"messages":" "})"), "");
}

TEST(MessagesRow, FindsReasoningByAnyOfItsNames) {
  for (const char* key : {"reasoning_content", "reasoning", "thinking"}) {
    const auto chat =
        parse_as<ChatRecord>(DataFormat::kMessages, std::string(R"({"messages":[{"role":"assistant","content":"a",")") +
                                                        key + R"(":"because"}]})");
    EXPECT_EQ(chat.messages[0].reasoning, "because") << key;
  }
}

TEST(MessagesRow, KeepsRolesThatOnlyTemplatesKnow) {
  EXPECT_EQ(chat_of(DataFormat::kMessages, R"({"messages":[{"role":"developer","content":"d"}],"tools":null})"),
            "developer:d");
  EXPECT_EQ(chat_of(DataFormat::kMessages, R"({"messages":[],"tools":""})"), "");
}

TEST(CompletionRow, IsTextsOrMessages) {
  const auto texts = parse_as<CompletionRecord>(DataFormat::kPromptCompletion, R"({"prompt":"p","completion":"c"})");
  EXPECT_EQ(texts.prompt, "p");
  EXPECT_EQ(texts.completion, "c");
  const auto chat = parse_as<ChatRecord>(DataFormat::kPromptCompletion,
                                         R"({"prompt":[{"role":"system","content":"s"},{"role":"user","content":"q"}],
          "completion":[{"role":"assistant","content":"a"}],"tools":[]})");
  EXPECT_EQ(shown(chat.messages), "system:s | user:q | assistant:a");
  EXPECT_EQ(chat.first_trained, 2u);
}

TEST(SegmentsRow, KeepsTextsAndLabels) {
  const auto record = parse_as<SegmentsRecord>(
      DataFormat::kSegments, R"({"segments":[{"text":"<s>q","label":false},{"label":true,"text":"a</s>"}]})");
  ASSERT_EQ(record.segments.size(), 2u);
  EXPECT_EQ(record.segments[0].text, "<s>q");
  EXPECT_FALSE(record.segments[0].trained);
  EXPECT_EQ(record.segments[1].text, "a</s>");
  EXPECT_TRUE(record.segments[1].trained);
}

TEST(TokensRow, IsTakenAsItIs) {
  const auto record =
      parse_as<TokensRecord>(DataFormat::kTokens, R"({"labels":[-100,5],"input_ids":[4,5],"attention_mask":[1,1]})");
  EXPECT_EQ(record.ids, (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(record.labels, (std::vector<int32_t>{-100, 5}));
  EXPECT_TRUE(parse_as<TokensRecord>(DataFormat::kTokens, R"({"input_ids":[8],"labels":null})").labels.empty());
}

struct Pair {
  std::string row;
  const char* chosen;
  const char* rejected;
  size_t first_trained;
};

class PreferenceRow : public testing::TestWithParam<Pair> {};

TEST_P(PreferenceRow, HasTheSharedMessagesInFrontOfBothAnswers) {
  const auto record = parse_as<PreferenceRecord>(DataFormat::kPreference, GetParam().row);
  EXPECT_EQ(shown(record.chosen.messages), GetParam().chosen);
  EXPECT_EQ(shown(record.rejected.messages), GetParam().rejected);
  EXPECT_EQ(record.chosen.first_trained, GetParam().first_trained);
  EXPECT_EQ(record.rejected.first_trained, GetParam().first_trained);
}

INSTANTIATE_TEST_SUITE_P(
    Rows, PreferenceRow,
    testing::Values(Pair{R"({"prompt":"q","chosen":"a","rejected":"b"})", "user:q | assistant:a",
                         "user:q | assistant:b", 1},
                    Pair{R"({"instruction":"q","input":"i","system":"s","chosen":"a","rejected":"b"})",
                         "system:s | user:q\ni | assistant:a", "system:s | user:q\ni | assistant:b", 2},
                    Pair{R"({"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},
                 "rejected":{"from":"gpt","value":"b"}})",
                         "user:q | assistant:a", "user:q | assistant:b", 1},
                    Pair{R"({"messages":[{"role":"user","content":"q"}],"chosen":{"role":"assistant","content":"a"},
                 "rejected":{"role":"assistant","content":"b"}})",
                         "user:q | assistant:a", "user:q | assistant:b", 1},
                    Pair{R"({"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"a"}],
                 "rejected":[{"role":"assistant","content":"b"}]})",
                         "user:q | assistant:a", "user:q | assistant:b", 1},
                    Pair{R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                 "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
                         "user:q | assistant:a", "user:q | assistant:b", 1},
                    Pair{R"({"prompt":"q","chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                 "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})",
                         "user:q | assistant:a", "user:q | assistant:b", 1},
                    Pair{R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                 "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
                         "user:q | assistant:a", "user:q | assistant:a", 1}));

TEST(PreferenceRow, MayHaveAMargin) {
  const auto margin = [](const char* json) {
    return parse_as<PreferenceRecord>(
               DataFormat::kPreference,
               std::string(R"({"prompt":"q","chosen":"a","rejected":"b","margin":)") + json + "}")
        .margin;
  };
  EXPECT_EQ(margin("0.5"), 0.5);
  EXPECT_EQ(margin("2"), 2.0);
  EXPECT_EQ(margin("null"), std::nullopt);
  EXPECT_EQ(margin("\"1.5\""), 1.5);  // .csv files have only strings
  EXPECT_EQ(margin("\"\""), std::nullopt);
}

TEST(RenamedRow, HasTheKeysOfTheSet) {
  DataSetConfig set = set_of(DataFormat::kMessages);
  set.columns = {{"messages", "dialog"}};
  set.tags = {{"role", "who"}, {"content", "what"}, {"user", "me"}, {"assistant", "bot"}, {"reasoning", "why"}};
  const auto chat = std::get<ChatRecord>(
      parse_row(set, R"({"dialog":[{"who":"me","what":"q"},{"who":"bot","what":"a","why":"so"}],"messages":1})"));
  EXPECT_EQ(shown(chat.messages), "user:q | assistant:a");
  EXPECT_EQ(chat.messages[1].reasoning, "so");
  set = set_of(DataFormat::kText);
  set.columns = {{"text", "content"}};
  EXPECT_EQ(std::get<TextRecord>(parse_row(set, R"({"content":"a"})")).text, "a");
  set = set_of(DataFormat::kSegments);
  set.tags = {{"label", "train"}};
  EXPECT_TRUE(
      std::get<SegmentsRecord>(parse_row(set, R"({"segments":[{"text":"a","train":true}]})")).segments[0].trained);
  // Two names may be swapped.
  set = set_of(DataFormat::kPromptCompletion);
  set.columns = {{"prompt", "completion"}, {"completion", "prompt"}};
  EXPECT_EQ(std::get<CompletionRecord>(parse_row(set, R"({"prompt":"a","completion":"b"})")).prompt, "b");
}

TEST(RenamedRow, RefusesNamesThatTheFormatDoesNotHave) {
  const auto message = [](DataFormat format, const std::map<std::string, std::string>& columns,
                          const std::map<std::string, std::string>& tags) {
    DataSetConfig set = set_of(format);
    set.columns = columns;
    set.tags = tags;
    return error_of([&] { make_row_parser(set, 0); });
  };
  EXPECT_TRUE(contains(message(DataFormat::kText, {{"messages", "x"}}, {}),
                       "data.train.0: columns: format \"text\" has no \"messages\"; it has \"text\""));
  EXPECT_TRUE(contains(message(DataFormat::kText, {}, {{"role", "x"}}), "tags: format \"text\" has no \"role\""));
  EXPECT_TRUE(contains(message(DataFormat::kMessages, {}, {{"role", "x"}, {"content", "x"}}),
                       "\"content\" and \"role\" are both \"x\""));
  EXPECT_TRUE(contains(message(DataFormat::kMessages, {{"messages", ""}}, {}), "is empty"));
}

TEST(UnusedKeys, AreCountedWithTheirPlace) {
  ReadNotes notes;
  parse_row(set_of(DataFormat::kMessages),
            R"({"id":1,"messages":[{"role":"user","content":"q","time":1},
                {"role":"user","content":[{"type":"text","text":"a","cache":1}],"time":2}]})",
            &notes);
  EXPECT_EQ(notes.unused_columns,
            (std::map<std::string, uint64_t>{{"id", 1}, {"messages[].time", 2}, {"messages[].content[].cache", 1}}));
}

TEST(UnusedKeys, AreEscapedAndCut) {
  ReadNotes notes;
  parse_row(set_of(DataFormat::kText),
            "{\"text\": \"a\", \"x\\u001b[2J\\nerror: gone\": 1, \"" + std::string(2'000'000, 'y') + "\": 2}", &notes);
  ASSERT_EQ(notes.unused_columns.size(), 2u);
  for (const auto& [name, rows] : notes.unused_columns) {
    EXPECT_LT(name.size(), 300u);
    EXPECT_EQ(name.find_first_of("\x1b\n"), std::string::npos);
  }
}

// In a table, the columns give each row the keys of all the others.
TEST(MessagesRow, OfATableHasTheCallsAndToolsOfTheSameLines) {
  const std::string table =
      R"({"messages":[{"role":"user","content":"go","tool_calls":null,"extra":null},{"role":"assistant","content":"",)"
      R"("tool_calls":[{"type":"function","function":{"name":"move","arguments":{"x":0,"at":[{"a":1,"b":null},null],)"
      R"("text":null}}},{"type":"function","function":{"name":"say","arguments":"{\"x\":null}"}}]}],)"
      R"("tools":[{"type":"function","function":{"name":"move","parameters":{"x":{"type":"integer"},"text":null}}}]})";
  const std::string line =
      R"({"messages":[{"role":"user","content":"go"},{"role":"assistant","content":"",)"
      R"("tool_calls":[{"type":"function","function":{"name":"move","arguments":{"x":0,"at":[{"a":1},null]}}},)"
      R"({"type":"function","function":{"name":"say","arguments":"{\"x\":null}"}}]}],)"
      R"("tools":[{"type":"function","function":{"name":"move","parameters":{"x":{"type":"integer"}}}}]})";
  const auto parser = make_row_parser(set_of(DataFormat::kMessages), 0);
  const auto parse = [&](const std::string& bytes, bool is_table) {
    RawRow row;
    row.bytes = bytes;
    row.is_table = is_table;
    return std::get<ChatRecord>(parser->parse(row, "a"));
  };
  const ChatRecord expected = parse(line, false);
  EXPECT_TRUE(parser->notes().changes.empty());
  const ChatRecord found = parse(table, true);
  EXPECT_EQ(found.messages, expected.messages);
  EXPECT_EQ(found.tools_json, expected.tools_json);
  EXPECT_TRUE(contains(found.messages[1].tool_calls_json, R"({"x":null})"));  // JSON in a text has no columns
  std::string noted;
  for (const auto& [what, times] : parser->notes().changes) noted += what + fmt::format(" {}\n", times);
  EXPECT_TRUE(contains(noted, ": messages[].tool_calls[].function.arguments.at[].b 1\n"));
  EXPECT_TRUE(contains(noted, ": messages[].tool_calls[].function.arguments.text 1\n"));
  EXPECT_TRUE(contains(noted, ": tools[].function.parameters.text 1\n"));
  EXPECT_TRUE(parser->notes().unused_columns.empty());
  // In a line of JSON a null is a value.
  EXPECT_TRUE(contains(parse(table, false).messages[1].tool_calls_json, R"("text":null)"));
}

TEST(MessagesRow, KeepsIntegersOfAnyNumberOfDigits) {
  const std::string big = "123456789012345678901234567890", negative = "-9223372036854775809";
  const auto row = [&](const std::string& arguments) {
    return R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"name":"f","arguments":)" + arguments +
           R"(}]}],"other":)" + big + "}";
  };
  const auto calls = [&](const std::string& arguments) {
    return std::get<ChatRecord>(parse_row(set_of(DataFormat::kMessages), row(arguments))).messages[0].tool_calls_json;
  };
  const std::string object = R"({"a":)" + big + R"(,"b":[)" + negative + R"(,18446744073709551615,1.5,-7],"c":"12"})";
  EXPECT_TRUE(contains(calls(object), object));
  EXPECT_TRUE(contains(calls(R"("{\"a\": )" + big + R"(}")"), R"({"a":)" + big + "}"));
  ReadNotes notes;
  const Record text = parse_row(set_of(DataFormat::kText), R"({"text":"a","x":)" + big + "}", &notes);
  EXPECT_EQ(std::get<TextRecord>(text).text, "a");
  EXPECT_EQ(notes.unused_columns.at("x"), 1u);
  const auto error = [](DataFormat format, const std::string& text) {
    return error_of([&] { parse_row(set_of(format), text, nullptr, 10); });
  };
  EXPECT_TRUE(contains(error(DataFormat::kText, R"({"text":)" + big + "}"), "\"text\" is " + big + ", not a string"));
  EXPECT_TRUE(contains(error(DataFormat::kTokens, R"({"input_ids":[1,)" + big + "]}"), "input_ids[1] is " + big));
}

TEST(RowParser, CountsTextsWithNulCharacters) {
  ReadNotes notes;
  parse_row(set_of(DataFormat::kText), R"({"text":"a\u0000b"})", &notes);
  ASSERT_EQ(notes.changes.size(), 1u);
  EXPECT_TRUE(contains(notes.changes.begin()->first, "texts of \"text\" have NUL characters"));
}

struct BadRow {
  DataFormat format;
  std::string row;
  const char* message;
};

class BadRows : public testing::TestWithParam<BadRow> {};

TEST_P(BadRows, AreRefusedWithTheirLineAndKey) {
  const std::string message = error_of([&] { parse_row(set_of(GetParam().format), GetParam().row, nullptr, 10); });
  EXPECT_TRUE(contains(message, "a.jsonl:7:"));
  EXPECT_TRUE(contains(message, GetParam().message));
}

TEST(RowParser, AnErrorOfJsonHasItsColumnAndCause) {
  const auto error = [](const std::string& row) {
    return error_of([&] { parse_row(set_of(DataFormat::kText), row, nullptr, 10); });
  };
  EXPECT_TRUE(contains(error(R"({"text":"a","x":NaN})"), "a.jsonl:7:17: not JSON: syntax error"));
  EXPECT_TRUE(contains(error(R"({"text":"a","x":NaN})"), "hint: JSON has no NaN"));
  EXPECT_TRUE(contains(error(R"({"text":"a","x":-Infinity})"), "hint: JSON has no NaN"));
  EXPECT_TRUE(contains(error(R"({"text":"\ud800"})"), "surrogate"));
  EXPECT_TRUE(contains(error(R"({"text":"a","x":1e999})"), "a.jsonl:7:17: not JSON: the number 1e999 is too large"));
  EXPECT_TRUE(contains(error("\xef\xbb\xbf{\"text\":\"a\"}"), "a.jsonl:7:1: not JSON: a byte order mark"));
  EXPECT_TRUE(contains(error("{\"text\":\n  \"a\",}"), "a.jsonl:8:7: not JSON"));
  EXPECT_LT(error("{\"text\":\"" + std::string(100000, 'a')).size(), 1000u);
}

constexpr auto kText = DataFormat::kText;
constexpr auto kAlpaca = DataFormat::kAlpaca;
constexpr auto kShareGpt = DataFormat::kShareGpt;
constexpr auto kMessages = DataFormat::kMessages;
constexpr auto kCompletion = DataFormat::kPromptCompletion;
constexpr auto kSegments = DataFormat::kSegments;
constexpr auto kTokens = DataFormat::kTokens;
constexpr auto kPreference = DataFormat::kPreference;

INSTANTIATE_TEST_SUITE_P(
    AnyFormat, BadRows,
    testing::Values(BadRow{kText, R"({"text": "a)", "not JSON"}, BadRow{kText, "\"text\"", "the row is a string, not"},
                    BadRow{kText, "[1]", "the row is a list, not a JSON object"}, BadRow{kText, "", "not JSON"},
                    BadRow{kText, R"({"text":"a","text":"b"})", "key \"text\" occurs twice"},
                    BadRow{kText, R"({"text":5})", "\"text\" is 5, not a string"},
                    BadRow{kText, R"({"text":["a"]})", "\"text\" is a list, not a string"},
                    BadRow{kText, R"({"text":null})", "\"text\" is null"},
                    BadRow{kText, R"({"text":null})", "give it a value, or remove the row"},
                    BadRow{kText, R"({"text":"a","x":1,"x":2})", "key \"x\" occurs twice"},
                    BadRow{kText, R"({"text":"a","x":[{},[{"y":{"z":1,"z":1}}]]})", "key \"x[1][0].y.z\" occurs twice"},
                    BadRow{kText, R"({"txt":"a"})", R"(key "text" is missing)"},
                    BadRow{kText, R"({"txt":"a"})", R"(the row has "txt"; another name is given by columns = { text)"},
                    BadRow{kText, "{}", "the row has no keys"}, BadRow{kText, R"({"text":"\udc00"})", "a.jsonl"},
                    BadRow{kText, R"({"text":"\ud800x"})", "a.jsonl"},
                    BadRow{kText, R"({"x":1e400,"text":""})", "not JSON"},
                    BadRow{kText, R"({"messages":[]})", R"(set format = "messages")"},
                    BadRow{kText, R"({"conversations":[]})", R"(set format = "sharegpt")"},
                    BadRow{kText, R"({"instruction":"","output":""})", R"(set format = "alpaca")"},
                    BadRow{kMessages, R"({"prompt":"","completion":""})", R"(set format = "prompt_completion")"},
                    BadRow{kMessages, R"({"messages":null,"chosen":[],"rejected":[]})",
                           R"(columns = { messages = "chosen" } trains the better answers)"},
                    BadRow{kMessages, R"({"input_ids":[]})", R"(set format = "tokens")"},
                    BadRow{kMessages, R"({"segments":[]})", R"(set format = "segments")"},
                    BadRow{kShareGpt, R"({"text":""})", R"(set format = "text")"}));

INSTANTIATE_TEST_SUITE_P(
    Conversations, BadRows,
    testing::Values(
        BadRow{kAlpaca, R"({"instruction":"a"})", "key \"output\" is missing"},
        BadRow{kAlpaca, R"({"instruction":"a","output":"b","input":3})", "\"input\" is 3, not a string"},
        BadRow{kAlpaca, R"({"instruction":"a","output":"b","history":[["q"]]})", "\"history[0]\" has 1 texts"},
        BadRow{kAlpaca, R"({"instruction":"a","output":"b","history":[["q",1]]})", "\"history[0][1]\" is 1"},
        BadRow{kAlpaca, R"({"instruction":"a","output":"b","history":"x"})", "\"history\" is \"x\", not a list"},
        BadRow{kShareGpt, R"({"conversations":{}})", "\"conversations\" is an object, not a list"},
        BadRow{kShareGpt, R"({"conversations":["a"]})", "\"conversations[0]\" is \"a\", not an object"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"bot","value":"a"}]})", R"("conversations[0].from" is "bot")"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"bot","value":"a"}]})", R"({ assistant = "bot" }, whichever)"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"Human","value":"a"}]})",
               R"(tags, such as { user = "Human" };)"},
        BadRow{kMessages, R"({"messages":[{"role":"User","content":"a"}]})", R"(tags, such as { user = "User" };)"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"gpt"}]})", R"(conversations[0] has neither "value" nor)"},
        BadRow{kShareGpt, R"({"conversations":[{"role":"user","content":"a"}]})", R"(set format = "messages")"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"system","value":"a"}],"system":"b"})", "keep one of them"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"function_call","value":"f x"}]
})",
               "is not JSON"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"function_call","value":"{}"}]})", "has no name"},
        BadRow{
            kShareGpt,
            R"({"conversations":[{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}"}]})",
            "key \"arguments.a\" occurs twice in the string"},
        BadRow{kMessages,
               R"({"messages":[{"role":"assistant","tool_calls":[{"name":"f","arguments":{"a":)" +
                   std::string(70, '[') + std::string(70, ']') + "}}]}]}",
               "\"messages[0].tool_calls\" is nested deeper than 64"},
        BadRow{kShareGpt, R"({"conversations":[{"from":"function_call","value":"[]"}]})", "has no call"},
        BadRow{kMessages, R"({"messages":[{"from":"human","value":"a"}]})", R"(set format = "sharegpt")"},
        BadRow{kMessages, R"({"messages":[{"content":"a"}]})", "\"messages[0].role\" is missing"},
        BadRow{kMessages, R"({"messages":[{"role":3,"content":"a"}]})", "\"messages[0].role\" is 3, not a string"},
        BadRow{kMessages, R"({"messages":[{"role":"","content":"a"}]})", "not a role"},
        BadRow{kMessages, R"({"messages":[{"role":"gpt","content":"a"}]})", R"(tags, such as { assistant = "gpt" })"},
        BadRow{kMessages, R"({"messages":[{"role":"user","role":"user","content":"a"}]})",
               "key \"messages[0].role\" occurs twice"},
        BadRow{kMessages, R"({"messages":[{"role":"user"}]})", R"(messages[0] has neither "content" nor tool calls)"},
        BadRow{kMessages, R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}]})", "neither"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":7}]})",
               "\"messages[0].content\" is 7, not a string"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})", "\"image_url\"; only"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
               "\"messages[0].content[0].text\" is missing"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":["a"]}]})", "is \"a\", not an object"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":"a","train":1}]})", "is 1, not true or false"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":"a","weight":0.5}]})", "0.5; only 0 and 1"},
        BadRow{kMessages, R"({"messages":[{"role":"user","content":"a","weight":0,"train":true}]})", "is 0"},
        BadRow{kMessages, R"({"messages":[{"role":"assistant","content":"a","reasoning":"b","thinking":"c"}]})",
               "which is the reasoning?"},
        BadRow{kMessages, R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}]})",
               "\"messages[0].tool_calls[0].function\" has no name"},
        BadRow{kMessages,
               R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"x=1"}}]}]})",
               "\"messages[0].tool_calls[0].function.arguments\" is not JSON"},
        BadRow{kMessages,
               R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}]})",
               "function.arguments\" is a list, not an object"},
        BadRow{kMessages, R"({"messages":[{"role":"assistant","tool_calls":[3]}]})", "is 3, not an object"},
        BadRow{kMessages, R"({"messages":"[{\"role\":"})", "the string \"messages\" is not JSON"},
        BadRow{kMessages, R"({"messages":"{}"})", "\"messages\" is an object, not a list"},
        BadRow{kMessages,
               R"({"messages":[{"role":"assistant","tool_calls":[{"name":"f"}],"function_call":{"name":"f"}}]})",
               "are both there: which are the calls?"},
        BadRow{kMessages, R"({"messages":[],"tools":"[1"})", "the string \"tools\" is not JSON"},
        BadRow{kMessages, R"({"messages":[],"tools":{"name":"f"}})", "\"tools\" is an object, not a list"},
        BadRow{kMessages, R"({"messages":[],"tools":["f"]})", "\"tools[0]\" is \"f\", not an object"}));

INSTANTIATE_TEST_SUITE_P(
    OtherFormats, BadRows,
    testing::Values(
        BadRow{kCompletion, R"({"prompt":"a"})", "key \"completion\" is missing"},
        BadRow{kCompletion, R"({"prompt":"a","completion":[]})",
               "\"prompt\" is a string, but \"completion\" is a list"},
        BadRow{kCompletion, R"({"prompt":[],"completion":[]})", "\"completion\" has no message"},
        BadRow{kCompletion, R"({"prompt":"a","completion":"b","tools":[]})", "tools need"},
        BadRow{kSegments, R"({"segments":[{"text":"a"}]})", "\"segments[0].label\" is missing"},
        BadRow{kSegments, R"({"segments":[{"text":"a","label":1}]})", "\"segments[0].label\" is 1, not true or false"},
        BadRow{kTokens, R"({"ids":[1]})", "\"input_ids\" is missing"},
        BadRow{kTokens, R"({"input_ids":[1],"input_ids":[2]})", "occurs twice"},
        BadRow{kTokens, R"({"input_ids":5})", "\"input_ids\" is 5, not a list"},
        BadRow{kTokens, R"({"input_ids":[1,2.5]})", "input_ids[1] is 2.5, not an integer"},
        BadRow{kTokens, R"({"input_ids":["a"]})", "not an integer"},
        BadRow{kTokens, R"({"input_ids":[99999999999999999999]})",
               "[0] is 99999999999999999999, the vocabulary has 10 ids"},
        BadRow{kTokens, R"({"input_ids":[1,10]})", "input_ids[1] is 10, the vocabulary has 10 ids"},
        BadRow{kTokens, R"({"input_ids":[-1]})", "input_ids[0] is -1, the vocabulary has 10 ids"},
        BadRow{kTokens, R"({"input_ids":[-100]})", "input_ids[0] is -100"},
        BadRow{kTokens, R"({"input_ids":[1,2],"labels":[1]})", "\"labels\" has 1 entries, \"input_ids\" has 2"},
        BadRow{kTokens, R"({"input_ids":[1],"labels":[-1]})", "labels[0] is -1"},
        BadRow{kTokens, R"({"input_ids":[1,2],"attention_mask":[1,0]})", "attention_mask[1] is 0"},
        BadRow{kTokens, R"({"input_ids":[1,2],"attention_mask":[1]})", "\"attention_mask\" has 1 entries"},
        BadRow{kTokens, R"({"input_ids":["\u001b[31merror: gone"]})", "\\u001b[31merror: gone"},
        BadRow{kTokens, R"({"input_ids":[1],"input_ids\n":1,"input_ids":2})", "occurs twice"},
        BadRow{kPreference, R"({"prompt":"q","chosen":"a"})", "key \"rejected\" is missing"},
        BadRow{kPreference, R"({"prompt":"q","chosen":"a","rejected":[]})", "\"chosen\" is a string, but \"rejected\""},
        BadRow{kPreference, R"({"prompt":"q","chosen":[],"rejected":[]})", "\"chosen\" has no message"},
        BadRow{kPreference, R"({"prompt":"q","chosen":1,"rejected":2})", "\"chosen\" is 1, not a text"},
        BadRow{kPreference, R"({"chosen":"a","rejected":"b"})", "no message comes before"},
        BadRow{kPreference, R"({"prompt":"q","instruction":"q","chosen":"a","rejected":"b"})", "are both there"},
        BadRow{kPreference, R"({"prompt":"q","chosen":"a","rejected":"b","margin":"high"})", "\"margin\" is \"high\""},
        BadRow{kPreference,
               R"({"chosen":[{"role":"assistant","content":"a"}],"rejected":[{"role":"assistant","content":"b"}]})",
               "no message comes before"},
        BadRow{kPreference,
               R"({"prompt":"q","chosen":[{"role":"user","content":"x"},{"role":"assistant","content":"a"}],
                   "rejected":[{"role":"user","content":"x"},{"role":"assistant","content":"b"}]})",
               "begin with neither the prompt nor an answer"}));

TEST(BadRows, MayBeDeeplyNestedOrLong) {
  const std::string deep(200'000, '[');
  EXPECT_TRUE(contains(
      error_of([&] { parse_row(set_of(kText), "{\"x\":" + deep + std::string(deep.size(), ']') + "}"); }), "not JSON"));
  const std::string quoted = R"({"messages":[],"tools":")" + deep + "\"}";
  EXPECT_TRUE(contains(error_of([&] { parse_row(set_of(kMessages), quoted); }), "is not JSON"));
  const std::string name(2'000'000, 'x');
  for (const std::string& row : {"{\"input_ids\":[\"" + name + "\"]}", "{\"" + name + "\":1}"})
    EXPECT_LT(error_of([&] { parse_row(set_of(kTokens), row); }).size(), 1000u);
}

}  // namespace
}  // namespace chassis
