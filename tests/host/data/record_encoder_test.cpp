// Records of all formats as ids and labels, and Jinja templates, whose spans come from the tokenizer.
#include "host/data/record_encoder.hpp"

#include <gtest/gtest.h>

#include <map>

#include "host/base/json.hpp"
#include "host/data/python_json.hpp"
#include "tests/host/data/chat_support.hpp"
#include "tests/support/cpu_seconds.hpp"

namespace chassis {
namespace {

const ChatTokenizer kWithBos({"<s>", "</s>", "<|im_start|>", "<|im_end|>"}, "<s>");

EncodeOptions supervised() {
  EncodeOptions options;
  options.supervised = true;
  return options;
}

TEST(RecordEncoder, ATextIsTrainedWithItsEnd) {
  EXPECT_EQ(encoded(kTokenizer, supervised(), TextRecord{"abc"}), "[abc</s>]");
  EXPECT_EQ(encoded(kWithBos, {}, TextRecord{"abc</s>"}), "[<s>abc</s>]");
}

TEST(RecordEncoder, AnEmptyTextHasNoTokensAndIsNotDropped) {
  RecordEncoder encoder(&kTokenizer, supervised());
  Document document;
  EXPECT_TRUE(encoder.encode(TextRecord{""}, {}, document));
  EXPECT_TRUE(document.ids.empty());
}

TEST(RecordEncoder, SegmentsAreTakenAsTheyAre) {
  const SegmentsRecord record{{{"<s>ask", false}, {"say\n", true}, {"\nask", false}, {"say", true}}};
  RecordEncoder encoder(&kWithBos, supervised());
  EXPECT_EQ(encoded(encoder, kWithBos, record), "<s>ask[say]\n\nask[say]");
  EXPECT_EQ(encoder.counts().num_partly_inside, 1u);
}

TEST(RecordEncoder, TokensAreTakenAsTheyAre) {
  Document document;
  RecordEncoder encoder(nullptr, supervised());
  EXPECT_TRUE(encoder.encode(TokensRecord{{1, 2, 3}, {-100, 2, -100}}, {}, document));
  EXPECT_EQ(document.ids, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(document.labels, (std::vector<int32_t>{-100, 2, -100}));
  EXPECT_FALSE(encoder.encode(TokensRecord{{1, 2}, {1, -100}}, {}, document)) << "the first token has no predecessor";
}

TEST(RecordEncoder, LabelsThatWereShiftedBeforehandAreCounted) {
  const auto num_shifted = [](std::vector<int32_t> ids, std::vector<int32_t> labels) {
    Document document;
    RecordEncoder encoder(nullptr, supervised());
    encoder.encode(TokensRecord{std::move(ids), std::move(labels)}, {}, document);
    return encoder.counts().num_shifted_labels;
  };
  EXPECT_EQ(num_shifted({1, 2, 3, 4}, {2, 3, 4, -100}), 1u);
  EXPECT_EQ(num_shifted({1, 2, 2, 4}, {-100, 2, 4, 9}), 1u);  // a token that follows itself
  EXPECT_EQ(num_shifted({1, 2, 3, 4}, {1, 2, 3, 4}), 0u);
  EXPECT_EQ(num_shifted({1, 2, 3, 4}, {-100, 2, 3, 4}), 0u);
  EXPECT_EQ(num_shifted({5, 5, 5, 5}, {5, 5, 5, 5}), 0u);
  EXPECT_EQ(num_shifted({1, 2, 3, 4}, {2, 9, 4, -100}), 0u);     // labels of their own
  EXPECT_EQ(num_shifted({1, 2, 3, 4}, {2, -100, -100, 4}), 0u);  // one match may be chance
  RecordEncoder encoder(nullptr, {});
  Document document;
  encoder.encode(TokensRecord{{1, 2, 3}, {2, 3, -100}}, {}, document);
  ASSERT_EQ(encoder.counts().changes().size(), 1u);
  EXPECT_TRUE(contains(encoder.counts().changes().begin()->first, "shifted beforehand"));
}

TEST(RecordEncoder, DocumentsWithoutAnEndAreCounted) {
  const ByteTokenizer tokenizer(-1, -1);
  RecordEncoder encoder(&tokenizer, {});
  Document document;
  encoder.encode(TextRecord{"abc"}, {}, document);
  ASSERT_EQ(encoder.counts().changes().size(), 1u);
  EXPECT_TRUE(contains(encoder.counts().changes().begin()->first, "the tokenizer has no EOS (eos_token)"));
}

TEST(RecordEncoder, OfACompletionTheEndIsTrainedToo) {
  EXPECT_EQ(encoded(kWithBos, supervised(), CompletionRecord{"ask: ", "yes"}), "<s>ask: [yes</s>]");
  EXPECT_EQ(encoded(kWithBos, supervised(), CompletionRecord{"ask: ", "yes</s>"}), "<s>ask: [yes</s>]");
  EXPECT_EQ(encoded(kWithBos, supervised(), CompletionRecord{"", "yes"}), "<s>[yes</s>]");
}

TEST(RecordEncoder, ATokenAcrossPromptAndCompletionIsMasked) {
  EXPECT_EQ(encoded(kTokenizer, supervised(), CompletionRecord{"ask:\n", "\nyes"}), "ask:\n\n[yes</s>]");
}

TEST(RecordEncoder, ACompletionWhoseFirstTokenBeginsInThePromptIsCountedByItself) {
  RecordEncoder encoder(&kTokenizer, supervised());
  EXPECT_EQ(encoded(encoder, kTokenizer, CompletionRecord{"which? ", "a cat"}), "which? a[ cat</s>]");
  EXPECT_EQ(encoded(encoder, kTokenizer, CompletionRecord{"which?", " a cat"}), "which?[ a cat</s>]");
  EXPECT_EQ(encoder.counts().num_masked_completions, 1u);
  const std::map<std::string, uint64_t> changes = encoder.counts().changes();
  ASSERT_EQ(changes.size(), 1u) << "the token is counted in one line";
  EXPECT_EQ(changes.begin()->first.find("the first token of a completion is masked"), 0u) << changes.begin()->first;
  EXPECT_EQ(changes.begin()->second, 1u);
}

TEST(RecordEncoder, EmptyAnswersAreCounted) {
  RecordEncoder encoder(&kTokenizer, chatml_options());
  encoded(encoder, kTokenizer, chat_of({{"user", "Hi"}, {"assistant", ""}, {"user", "Hi"}, {"assistant", "x"}}));
  EXPECT_EQ(encoder.counts().num_empty_answers, 1u);
  EXPECT_EQ(encoder.counts().changes().count("answers are empty: only their end can be trained"), 1u);
}

TEST(RecordEncoder, NamesThatTheTemplateLeavesOutAreCounted) {
  RecordEncoder encoder(&kTokenizer, chatml_options());
  ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "x"}});
  chat.messages[0].name = "bob";
  encoded(encoder, kTokenizer, chat);
  EXPECT_EQ(encoder.counts().num_hidden_names, 1u);
  EXPECT_EQ(encoder.counts().changes().count("the template leaves out the name of messages"), 1u);
  chat.messages[0].content[0].text = "I am bob";
  encoded(encoder, kTokenizer, chat);
  EXPECT_EQ(encoder.counts().num_hidden_names, 1u);
}

TEST(RecordEncoder, ARowOfWhichOnlyAnEndIsTrainedIsRefused) {
  const auto refusal = [](const Record& record) {
    return error_of([&] { encoded(kTokenizer, chatml_options(), record); });
  };
  EXPECT_TRUE(contains(refusal(chat_of({{"user", "Hi"}, {"assistant", ""}})),
                       "chat.jsonl:7: nothing of the row is trained but <|im_end|> (id 259), which ends an answer"));
  EXPECT_TRUE(contains(refusal(chat_of({{"user", "Hi"}, {"assistant", " \n"}})), "nothing of the row is trained but"));
  EXPECT_TRUE(contains(refusal(CompletionRecord{"ask", ""}), "nothing of the row is trained but </s> (id 257)"));
}

TEST(RecordEncoder, RefusedConversationsAreSkippedIfTheUserSaysSo) {
  EncodeOptions options = chatml_options();
  options.skips_refused = true;
  RecordEncoder encoder(&kTokenizer, options);
  EXPECT_EQ(encoded(encoder, kTokenizer, chat_of({{"user", "Hi"}, {"critic", "Bad"}})),
            "(dropped: refused: messages[] has the role \"critic\", which template chatml does not have)");
  EXPECT_EQ(encoded(encoder, kTokenizer, chat_of({{"user", "1"}, {"user", "2"}, {"critic", "Bad"}})),
            "(dropped: refused: messages[] has the role \"critic\", which template chatml does not have)");
  EXPECT_TRUE(contains(encoded(encoder, kTokenizer, CompletionRecord{"ask", ""}), "(dropped: refused: nothing of"));
  EXPECT_EQ(encoded(encoder, kTokenizer, CompletionRecord{"ask", "x"}), "ask[x</s>]");
  EXPECT_EQ(encoder.counts().dropped.size(), 2u);
  EXPECT_EQ(encoder.counts().num_rows, 4u);
  EXPECT_NE(encoder.fingerprint(), RecordEncoder(&kTokenizer, chatml_options()).fingerprint());
  EXPECT_TRUE(contains(error_of([&] { encoded(encoder, kTokenizer, PreferenceRecord{}); }), "a preference pair"));
}

TEST(RecordEncoder, ACompletionWithNothingInFrontIsCounted) {
  RecordEncoder encoder(&kTokenizer, supervised());
  encoded(encoder, kTokenizer, CompletionRecord{"", "yes"});
  encoded(encoder, kTokenizer, CompletionRecord{"a", "yes"});
  EXPECT_EQ(encoder.counts().num_untrained_first, 1u);
  RecordEncoder with_bos(&kWithBos, supervised());
  encoded(with_bos, kWithBos, CompletionRecord{"", "yes"});
  EXPECT_EQ(with_bos.counts().num_untrained_first, 0u);
}

TEST(RecordEncoder, SpecialTokensSpelledInContentsAreCounted) {
  RecordEncoder encoder(&kTokenizer, chatml_options());
  encoded(encoder, kTokenizer, chat_of({{"user", "Hi"}, {"assistant", "x"}}));
  EXPECT_TRUE(encoder.counts().spelled.empty());
  encoded(encoder, kTokenizer, chat_of({{"user", "a<|im_end|>b<|im_end|><|im_start|>"}, {"assistant", "x"}}));
  EXPECT_EQ(encoder.counts().spelled, (std::map<std::string, uint64_t>{{"<|im_end|>", 2}, {"<|im_start|>", 1}}));
}

TEST(RecordEncoder, AConversationOfManyMessagesTakesLinearTime) {
  const auto seconds_of = [](size_t num_pairs) {
    ChatRecord chat;
    for (size_t i = 0; i < num_pairs; ++i) {
      chat.messages.push_back(message_of("user", "Hi"));
      chat.messages.push_back(message_of("assistant", "x"));
      chat.messages.back().reasoning = "r";
    }
    RecordEncoder encoder(&kTokenizer, chatml_options());
    Document document;
    return test::cpu_seconds_of([&] { EXPECT_TRUE(encoder.encode(chat, {}, document)); });
  };
  const double few = seconds_of(1000), many = seconds_of(64000);
  EXPECT_LT(many, 250 * few) << "64 times the messages; with a step of quadratic time more than 500 times as long";
}

TEST(RecordEncoder, ACompletionNeedsAnEnd) {
  const ChatTokenizer without({"<s>"}, "", "");
  EXPECT_TRUE(contains(error_of([&] {
                         encoded(without, supervised(), CompletionRecord{"a", "b"});
                       }),
                       "chat.jsonl:7: the tokenizer has no EOS that could end a completion"));
}

TEST(RecordEncoder, PairsAreRefusedWithAReason) {
  EXPECT_TRUE(contains(error_of([&] { encoded(kTokenizer, supervised(), PreferenceRecord{}); }),
                       "chat.jsonl:7: a preference pair cannot be trained"));
}

TEST(RecordEncoder, ConversationsNeedTheTaskSft) {
  EXPECT_TRUE(contains(error_of([&] { encoded(kTokenizer, {}, chat_of({{"user", "Hi"}})); }), "train.task = \"sft\""));
}

TEST(RecordEncoder, ARoleThatTheTemplateLacksIsRefusedAtItsRow) {
  const std::string text = error_of([&] {
    encoded(kTokenizer, chatml_options(), chat_of({{"user", "Hi"}, {"critic", "Bad"}}));
  });
  EXPECT_TRUE(contains(text, "chat.jsonl:7: messages[1] has the role \"critic\", which template chatml does not have"));
  EXPECT_TRUE(contains(text, "it has system, user, assistant, tool"));
}

TEST(RecordEncoder, WithoutATemplateTheSlotTemplatesAreNamed) {
  EncodeOptions options = supervised();
  options.chat.fitting_slots = {"chatml", "plain"};
  EXPECT_TRUE(contains(error_of([&] {
                         encoded(kTokenizer, options, chat_of({{"user", "Hi"}, {"assistant", "Yo"}}));
                       }),
                       "set data.template = \"NAME\": \"chatml\", \"plain\" fit this tokenizer"));
}

TEST(RecordEncoder, ASlotTemplateWhoseEndIsNoTokenIsRefused) {
  const ChatTokenizer other({"</s>"});
  EXPECT_TRUE(contains(error_of([&] {
                         encoded(other, chatml_options(), chat_of({{"user", "Hi"}, {"assistant", "Yo"}}));
                       }),
                       "template chatml ends answers in <|im_end|>, which is not a token of the tokenizer"));
}

TEST(RecordEncoder, IntegersOfToolCallsKeepTheirDigits) {
  const std::string big = "123456789012345678901234567890";
  ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", ""}});
  chat.messages[1].has_content = false;
  chat.messages[1].content.clear();
  chat.messages[1].tool_calls_json = R"([{"type":"function","function":{"name":"f","arguments":{"x":)" + big + "}}}]";
  const std::string text = encoded(kTokenizer, chatml_options(), chat);
  EXPECT_TRUE(contains(text, R"(<tool_call>f {"x": )" + big + "}</tool_call>"));
  EXPECT_TRUE(contains(messages_json(chat.messages), R"("x":)" + big + "}"));
}

TEST(RecordEncoder, AnIdOutsideTheModelsVocabularyIsRefused) {
  EncodeOptions options = supervised();
  options.vocab_size = 257;
  EXPECT_TRUE(contains(error_of([&] { encoded(kTokenizer, options, TextRecord{"a"}); }),
                       "(id 257), and the vocabulary has 257 ids"));
}

TEST(RecordEncoder, TheFingerprintChangesWithWhatLabelsDependOn) {
  const auto print = [](const EncodeOptions& options) { return RecordEncoder(&kTokenizer, options).fingerprint(); };
  const std::string before = print(chatml_options());
  EXPECT_EQ(print(chatml_options()), before);
  EncodeOptions options = chatml_options();
  options.seq_len = 99;
  EXPECT_EQ(print(options), before) << "only packing depends on it";
  options.overflow = Overflow::kTruncate;
  EXPECT_NE(print(options), before);
  const auto changed = [&](auto change) {
    EncodeOptions other = chatml_options();
    change(other.chat);
    return print(other) != before;
  };
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.last_turn_only = true; }));
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.train_on_prompt = true; }));
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.roles_to_train = {"user"}; }));
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.reasoning = Reasoning::kKeep; }));
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.default_system = "s"; }));
  EXPECT_TRUE(changed([](ChatConfig& chat) { chat.stop_ids = {1}; }));
  EXPECT_EQ(print({}), "") << "texts and tokens depend on nothing";
}

TEST(RecordEncoder, AConversationWithoutMessagesHasNoTokens) {
  ChatTokenizer jinja{{"</s>", "<|im_start|>", "<|im_end|>"}, "", "<|im_end|>"};
  jinja.jinja_source = "{{ messages }}";
  jinja.jinja = [](const ChatRequest&) -> RenderedChat {
    throw config_error("a conversation has at least one message");
  };
  EncodeOptions with_system = chatml_options();
  with_system.chat.default_system = "s";
  EXPECT_EQ(encoded(jinja, supervised(), ChatRecord{}), "");
  EXPECT_EQ(encoded(kTokenizer, with_system, ChatRecord{}), "");
}

// A template of Jinja as the tokenizer renders it: "<|im_start|>role\n" + content + end, with spans of the assistant.
class JinjaTest : public testing::Test {
 protected:
  JinjaTest() {
    tokenizer_.jinja_source = "{{ messages }}";
    tokenizer_.jinja = [this](const ChatRequest& chat) { return render(chat); };
  }

  RenderedChat render(const ChatRequest& chat) {
    RenderedChat out;
    const Json messages = parse_json(chat.messages_json, "messages");
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string role = messages[i]["role"];
      out.text += (role == "assistant" ? answer_open_ : "<|im_start|>" + role + "\n");
      const std::string content = messages[i]["content"];
      if (role == "assistant") out.text += before_leaf_;
      const uint64_t begin = out.text.size();
      out.text += content;
      if (is_generation_) out.text += inside_end_;
      if (role == "assistant" && !hides_)
        out.spans.push_back({is_generation_ ? ChatLeaf::kGeneration : ChatLeaf::kContent, i, begin, out.text.size()});
      if (!is_generation_ || role != "assistant") out.text += end_;
    }
    if (chat.generation_prompt) out.text += answer_open_ + prompt_end_;
    if (chat.spans) last_ = chat;  // not a render that only proves what the template shows
    return out;
  }

  std::string masked(const ChatRecord& chat) { return encoded(tokenizer_, options_, chat); }

  ChatTokenizer tokenizer_{{"</s>", "<|im_start|>", "<|im_end|>", "[/INST]"}, "", "<|im_end|>"};
  EncodeOptions options_ = supervised();
  std::string answer_open_ = "<|im_start|>assistant\n", before_leaf_, prompt_end_, inside_end_, end_ = "<|im_end|>\n";
  bool is_generation_ = false, hides_ = false;
  ChatRequest last_;
  const ChatRecord chat_ = chat_of({{"user", "Hi"}, {"assistant", "Yo"}});
};

TEST_F(JinjaTest, TheLeafAndTheEndOfTheTurnAreTrained) {
  EXPECT_EQ(masked(chat_), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Yo<|im_end|>]\n");
}

TEST_F(JinjaTest, WhatFollowsTheGenerationPromptIsTheModelsToWrite) {
  before_leaf_ = "<think>\n\n</think>";
  EXPECT_TRUE(contains(masked(chat_), "assistant\n[<think>\n\n</think>Yo<|im_end|>]\n"));
  answer_open_ += before_leaf_;  // as with enable_thinking = false: the template writes it
  before_leaf_ = "";
  EXPECT_TRUE(contains(masked(chat_), "assistant\n<think>\n\n</think>[Yo<|im_end|>]\n"));
}

TEST_F(JinjaTest, WhatTheGenerationPromptBeginsOfAnAnswerIsNotTheModelsToWrite) {
  prompt_end_ = "<think>\n";
  const auto answer = [&](const std::string& text) { return masked(chat_of({{"user", "Hi"}, {"assistant", text}})); };
  EXPECT_TRUE(contains(answer("<think>\nr\n</think>Yo"), "assistant\n<think>\n[r\n</think>Yo<|im_end|>]\n"));
  EXPECT_TRUE(contains(answer("<think>r</think>Yo"), "assistant\n[<think>r</think>Yo<|im_end|>]\n"));
  EXPECT_TRUE(contains(answer("<think>\n\nr</think>"), "assistant\n[<think>\n\nr</think><|im_end|>]\n"))
      << "the prompt ends inside a token";
  EXPECT_TRUE(contains(
      masked(chat_of(
          {{"user", "Hi"}, {"assistant", "<think>\nr</think>"}, {"user", "Ok"}, {"assistant", "<think>\ns</think>"}})),
      "assistant\n<think>\n[r</think><|im_end|>]\n<|im_start|>user\nOk<|im_end|>\n"
      "<|im_start|>assistant\n<think>\n[s</think><|im_end|>]"));
}

TEST_F(JinjaTest, ASpaceBehindTheTokenThatEndsTheQuestionIsTheModelsToWrite) {
  answer_open_ = "";
  before_leaf_ = " ";  // " a" is one token
  EXPECT_TRUE(contains(masked(chat_of({{"user", "Hi"}, {"assistant", "apple"}})), "<|im_end|>\n a[pple<|im_end|>]"))
      << "no special token stands in front, so the space may belong to the header";
  end_ = "<|im_end|>";
  EXPECT_TRUE(contains(masked(chat_of({{"user", "Hi"}, {"assistant", "apple"}})), "Hi<|im_end|>[ apple<|im_end|>]"));
}

TEST_F(JinjaTest, AGenerationBlockIsTakenAsItIs) {
  is_generation_ = true;
  inside_end_ = "<|im_end|>";
  const ChatRecord chat = chat_of({{"assistant", "Yo"}, {"assistant", "By"}});
  EXPECT_EQ(masked(chat), "<|im_start|>assistant\n[Yo<|im_end|>]<|im_start|>assistant\n[By<|im_end|>]");
}

TEST_F(JinjaTest, PartsAreFoundInAGenerationBlock) {
  is_generation_ = true;
  inside_end_ = "<|im_end|>";
  ChatRecord chat = chat_of({{"assistant", ""}});
  chat.messages[0].content = {{"no", false}, {"yes", std::nullopt}};
  EXPECT_EQ(masked(chat), "<|im_start|>assistant\nno[yes<|im_end|>]");
  EXPECT_EQ(parse_json(last_.messages_json, "m")[0]["content"], "noyes") << "the parts only say what is trained";
}

TEST_F(JinjaTest, AGenerationBlockWithoutAnEndIsRefused) {
  is_generation_ = true;
  EXPECT_TRUE(contains(error_of([&] {
                         masked(chat_of({{"assistant", "Yo"}}));
                       }),
                       "the {% generation %} block of the tokenizer's chat template has no token that ends the turn"));
}

TEST_F(JinjaTest, AnAnswerThatTheTemplateHidesIsRefused) {
  hides_ = true;
  EXPECT_TRUE(contains(error_of([&] { masked(chat_); }),
                       "chat.jsonl:7: the template does not show messages[1], which is to be trained"));
}

TEST_F(JinjaTest, UnprovenSpansNameTheSlotTemplates) {
  options_.chat.fitting_slots = {"chatml"};
  tokenizer_.jinja = [this](const ChatRequest& chat) -> RenderedChat {
    if (chat.spans) throw ChatSpansUnproven(ExitCode::kConfig, "the template trims the content");
    return {.text = render(chat).text, .spans = {}};
  };
  const std::string text = error_of([&] { masked(chat_); });
  EXPECT_TRUE(contains(text,
                       "chat.jsonl:7: it is not known which bytes of the tokenizer's chat template are the "
                       "assistant's: the template trims the content"));
  EXPECT_TRUE(contains(text, "set data.template to a slot template: \"chatml\""));
  options_.chat.train_on_prompt = true;
  EXPECT_EQ(masked(chat_), "[<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n]")
      << "no spans are needed";
}

TEST_F(JinjaTest, OtherRolesNeedASlotTemplate) {
  options_.chat.roles_to_train = {"user"};
  EXPECT_TRUE(
      contains(error_of([&] { masked(chat_); }), "a Jinja template gives the places of the assistant's messages"));
}

TEST_F(JinjaTest, TheErrorOfATemplateNamesTheRow) {
  tokenizer_.jinja = [](const ChatRequest&) -> RenderedChat { throw config_error("roles must alternate"); };
  EXPECT_TRUE(contains(error_of([&] { masked(chat_); }), "chat.jsonl:7: roles must alternate"));
}

TEST_F(JinjaTest, ADefaultSystemMessageDoesNotShiftTheMasks) {
  options_.chat.default_system = "Be.";
  EXPECT_EQ(masked(chat_),
            "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            "[Yo<|im_end|>]\n");
}

TEST_F(JinjaTest, TheTemplateGetsMessagesAsOpenAiHasThem) {
  Message call;
  call.role = "assistant";
  call.has_content = false;
  call.reasoning = "why";
  call.tool_calls_json = R"([{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}])";
  Message parts = message_of("user", "a");
  parts.content_is_parts = true;
  Message result = message_of("tool", "1");
  result.tool_call_id = "id1";
  EXPECT_EQ(parse_json(messages_json({parts}), "m")[0]["content"], "a");
  const auto keeps_parts = [](const Message&) { return true; };
  EXPECT_EQ(parse_json(messages_json({parts, call, result}, keeps_parts), "m"), parse_json(R"([
      {"role": "user", "content": [{"type": "text", "text": "a"}]},
      {"role": "assistant", "content": null, "reasoning_content": "why",
       "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
      {"role": "tool", "content": "1", "tool_call_id": "id1"}])",
                                                                                           "m"));
}

TEST_F(JinjaTest, AMessageWithoutContentIsNamedIfTheTemplateReadsIt) {
  tokenizer_.jinja = [](const ChatRequest& chat) -> RenderedChat {
    for (const Json& message : parse_json(chat.messages_json, "m"))
      if (!message.contains("content") || message["content"].is_null()) throw config_error("string and undefined");
    return {};
  };
  EXPECT_FALSE(contains(error_of([&] { masked(chat_); }), "has no content"));
  ChatRecord without = chat_;
  without.messages.back().has_content = false;
  EXPECT_TRUE(contains(error_of([&] { masked(without); }), "message 2 (assistant) has no content, or null"));
  // The cause is another if the template refuses the row also with a content.
  tokenizer_.jinja = [](const ChatRequest&) -> RenderedChat { throw config_error("string and undefined"); };
  EXPECT_FALSE(contains(error_of([&] { masked(without); }), "has no content"));
}

TEST_F(JinjaTest, TheDateOfTheConfigurationIsShown) {
  options_.chat.date = "2024-07-26";
  masked(chat_);
  EXPECT_EQ(last_.unix_time_s, 1721952000);
  EXPECT_TRUE(contains(error_of([] { unix_time_of_date("2024-02-30"); }), "\"2024-02-30\" is not a date"));
}

TEST(PythonJson, IsWrittenAsPythonDoes) {
  const Json value = parse_json(R"({"a":[1,2.0,1e-7,1e16,123456789.5,true,null],"é":"\u00e9\n\"","o":{}})", "x");
  EXPECT_EQ(python_json(value),
            "{\"a\": [1, 2.0, 1e-07, 1e+16, 123456789.5, true, null], \"é\": \"é\\n\\\"\", \"o\": {}}");
}

}  // namespace
}  // namespace chassis
