// The nine rules that say which tokens of a conversation are trained.
#include <gtest/gtest.h>

#include <algorithm>

#include "host/data/eval_data.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

const ChatTokenizer kChats;

std::string masked(const ChatRecord& chat, const EncodeOptions& options = chatml_options()) {
  return encoded(kChats, options, chat);
}

const ChatRecord kTwoTurns = chat_of({{"user", "Hi"}, {"assistant", "Yo"}, {"user", "Ok"}, {"assistant", "By"}});
const std::string kFirstQuestion = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
const std::string kSecondQuestion = "\n<|im_start|>user\nOk<|im_end|>\n<|im_start|>assistant\n";

// Rule 1: part.train before message.train before roles_to_train.

TEST(MaskingRule1, TheMessagesOfTheAssistantAreTrained) {
  EXPECT_EQ(masked(kTwoTurns), kFirstQuestion + "[Yo<|im_end|>]" + kSecondQuestion + "[By<|im_end|>]\n");
}

TEST(MaskingRule1, RolesToTrainNamesOthers) {
  EncodeOptions options = chatml_options();
  options.chat.roles_to_train = {"user"};
  EXPECT_EQ(masked(kTwoTurns, options),
            "<|im_start|>user\n[Hi<|im_end|>]\n<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>user\n[Ok<|im_end|>]\n"
            "<|im_start|>assistant\nBy<|im_end|>\n");
}

TEST(MaskingRule1, AMessageDecidesAgainstItsRole) {
  ChatRecord chat = kTwoTurns;
  chat.messages[1].train = false;
  chat.messages[2].train = true;
  EXPECT_EQ(masked(chat), kFirstQuestion + "Yo<|im_end|>\n<|im_start|>user\n[Ok<|im_end|>]\n<|im_start|>assistant\n" +
                              "[By<|im_end|>]\n");
}

TEST(MaskingRule1, APartDecidesAgainstItsMessageAndTheEndOfTheTurnFollowsTheLastPart) {
  ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "one"}});
  Message& answer = chat.messages[1];
  answer.content = {{"one", false}, {"two", std::nullopt}, {"six", true}};
  EXPECT_EQ(masked(chat), kFirstQuestion + "one[twosix<|im_end|>]\n");
  answer.train = false;
  EXPECT_EQ(masked(chat), kFirstQuestion + "onetwo[six<|im_end|>]\n");
  answer.content = {{"one", true}, {"two", false}};
  EXPECT_EQ(masked(chat), kFirstQuestion + "[one]two<|im_end|>\n");
}

TEST(MaskingRule1, TrainOnPromptTrainsAllButWhatSaysOtherwise) {
  EncodeOptions options = chatml_options();
  options.chat.train_on_prompt = true;
  EXPECT_EQ(masked(chat_of({{"user", "Hi"}, {"assistant", "Yo"}}), options), "[" + kFirstQuestion + "Yo<|im_end|>\n]");
  ChatRecord chat = kTwoTurns;
  chat.messages[1].train = false;
  EXPECT_EQ(masked(chat, options), "[" + kFirstQuestion + "]Yo<|im_end|>[" + kSecondQuestion + "By<|im_end|>\n]");
}

TEST(MaskingRule1, LastTurnOnlyTrainsTheLastAnswer) {
  EncodeOptions options = chatml_options();
  options.chat.last_turn_only = true;
  EXPECT_EQ(masked(kTwoTurns, options), kFirstQuestion + "Yo<|im_end|>" + kSecondQuestion + "[By<|im_end|>]\n");
}

TEST(MaskingRule1, OfAPromptAndItsCompletionOnlyTheCompletionIsTrained) {
  ChatRecord chat = kTwoTurns;
  chat.first_trained = 3;
  EXPECT_EQ(masked(chat), kFirstQuestion + "Yo<|im_end|>" + kSecondQuestion + "[By<|im_end|>]\n");
}

// Rule 2: the content and the token that ends the turn; not the header.

TEST(MaskingRule2, ToolCallsAreTrainedThroughToTheStopToken) {
  ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "Wait"}});
  chat.messages[1].tool_calls_json = R"([{"function": {"name": "f", "arguments": {"x": 1}}}])";
  EXPECT_EQ(masked(chat), kFirstQuestion + "[Wait\n<tool_call>f {\"x\": 1}</tool_call><|im_end|>]\n");
  chat.messages[1].content.clear();
  EXPECT_EQ(masked(chat), kFirstQuestion + "[<tool_call>f {\"x\": 1}</tool_call><|im_end|>]\n");
}

TEST(MaskingRule2, AnEmptyAnswerTrainsItsEnd) {
  EXPECT_EQ(masked(chat_of({{"user", "Hi"}, {"assistant", ""}, {"user", "Hi"}, {"assistant", "Yo"}})),
            kFirstQuestion + "[<|im_end|>]\n" + kFirstQuestion + "[Yo<|im_end|>]\n");
}

// Rule 3: one render, one tokenisation; a token is trained if it lies wholly inside.

TEST(MaskingRule3, ATokenThatLiesPartlyInsideIsMaskedAndCounted) {
  RecordEncoder encoder(&kChats, chatml_options());
  // "\n\n" is one token: the end of the header and the start of the content.
  EXPECT_EQ(encoded(encoder, kChats, chat_of({{"user", "Hi"}, {"assistant", "\nYo"}})),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n\n[Yo<|im_end|>]\n");
  EXPECT_EQ(encoder.counts().num_partly_inside, 1u);
  EXPECT_EQ(encoder.partly_inside().size(), 1u);
  EXPECT_EQ(encoder.counts().num_masked_beginnings, 1u);
  const auto changes = encoder.counts().changes();
  EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), [](const auto& change) {
    return change.first.starts_with("the first token of an answer is masked") && change.second == 1;
  }));
}

TEST(MaskingRule3, ASpaceThatASlotTemplateWritesBeforeAnswersIsTrainedWithTheirFirstWord) {
  EncodeOptions options = chatml_options();
  auto slots = std::make_shared<SlotTemplate>(chatml_slots());
  slots->user = slot_from_text("[I] {{content}}[/I]", {"content"});  // neither is a token of this tokenizer
  slots->assistant_open = {};
  slots->assistant = slot_from_text(" {{content}}", {"content"});
  options.chat.slots = slots;
  RecordEncoder encoder(&kChats, options);
  EXPECT_EQ(encoded(encoder, kChats, chat_of({{"user", "Hi"}, {"assistant", "an"}})), "[I] Hi[/I][ an<|im_end|>]\n");
  EXPECT_EQ(encoder.counts().num_partly_inside, 0u);
}

TEST(MaskingRule3, PartsThatAreBothTrainedHaveNoBoundary) {
  RecordEncoder encoder(&kChats, chatml_options());
  ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", ""}});
  chat.messages[1].content = {{"no ", false}, {"x\n", true}, {"\ny", std::nullopt}};
  EXPECT_EQ(encoded(encoder, kChats, chat), kFirstQuestion + "no [x\n\ny<|im_end|>]\n");
  EXPECT_EQ(encoder.counts().num_partly_inside, 0u);
}

// Rule 4: BOS once.

TEST(MaskingRule4, ATemplateAloneWritesBos) {
  const ChatTokenizer tokenizer({"<s>", "</s>", "<|im_start|>", "<|im_end|>"}, "<s>");
  EncodeOptions options = chatml_options();
  EXPECT_EQ(encoded(tokenizer, options, chat_of({{"user", "Hi"}, {"assistant", "Yo"}})),
            kFirstQuestion + "[Yo<|im_end|>]\n");
  SlotTemplate slots = chatml_slots();
  slots.bos = slot_from_text("{{bos}}", {"bos"});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  EXPECT_EQ(encoded(tokenizer, options, chat_of({{"user", "Hi"}, {"assistant", "Yo"}})),
            "<s>" + kFirstQuestion + "[Yo<|im_end|>]\n");
}

TEST(MaskingRule4, TwoBosAreAnError) {
  const ChatTokenizer tokenizer({"<s>", "</s>", "<|im_start|>", "<|im_end|>"}, "<s>");
  EncodeOptions options = chatml_options();
  SlotTemplate slots = chatml_slots();
  slots.bos = slot_from_text("{{bos}}", {"bos"});
  slots.user = slot_from_text("{{content}}\n", {"content"});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  const std::string text = error_of([&] {
    encoded(tokenizer, options, chat_of({{"user", "<s>Hi"}, {"assistant", "Yo"}}));
  });
  EXPECT_TRUE(contains(text, "chat.jsonl:7: the row begins with <s> (id 256) twice"));
}

// Rule 5: padding is masked by its place, never by its id.

TEST(MaskingRule5, ATrainedEosStaysTrainedIfPaddingHasItsId) {
  const TempFolder folder;
  DataConfig data;
  data.packing = Packing::kNone;
  data.seq_len = 6;
  data.pad_id = kChats.eos_id();
  data.cache_dir = folder.path() + "/cache";
  EvalData rows(text_set(folder.write("a.txt", "abc\n")), data, &kChats);
  const Batch batch = *rows.next(1);
  const std::vector<int32_t> labels(batch.values("labels").begin(), batch.values("labels").end());
  EXPECT_EQ(labels, (std::vector<int32_t>{'b', 'c', kChats.eos_id(), -100, -100, -100}));
}

// Rule 6: a row without a trained token is dropped and counted.

TEST(MaskingRule6, ARowWithoutATrainedTokenIsDroppedAndCounted) {
  RecordEncoder encoder(&kChats, chatml_options());
  EXPECT_EQ(encoded(encoder, kChats, chat_of({{"user", "Hi"}})), "(dropped: no token is trained)");
  EXPECT_EQ(encoder.counts().dropped.at("no token is trained"), 1u);
  EXPECT_EQ(encoder.counts().num_rows, 1u);
  EXPECT_EQ(encoder.counts().num_tokens, 0u);
}

// Rule 7: a trained turn ends in a token at which generation stops.

TEST(MaskingRule7, ATurnThatEndsInAnotherTokenIsRefused) {
  const ChatTokenizer tokenizer({"</s>", "<|im_start|>", "<|im_end|>", "<|eot|>"});
  EncodeOptions options = chatml_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_close = slot_from_text("<|eot|>\n", {});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  const std::string text = error_of([&] {
    encoded(tokenizer, options, chat_of({{"user", "Hi"}, {"assistant", "Yo"}}));
  });
  EXPECT_TRUE(contains(text,
                       "chat.jsonl:7: the model will not learn to stop: in template chatml, the turn of messages[1] "
                       "ends in <|eot|> (id 259), but generation stops at </s> (id 256), <|im_end|> (id 258)"));
  EXPECT_TRUE(contains(text, "add 259 to eos_token_id in generation_config.json"));
}

TEST(MaskingRule7, AStopIdOfTheConfigurationEndsATurn) {
  const ChatTokenizer tokenizer({"</s>", "<|im_start|>", "<|im_end|>", "<|eot|>"});
  EncodeOptions options = chatml_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_close = slot_from_text("<|eot|>\n", {});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  options.chat.stop_ids = {259};
  EXPECT_TRUE(contains(encoded(tokenizer, options, chat_of({{"user", "Hi"}, {"assistant", "Yo"}})), "[Yo<|eot|>]\n"));
}

TEST(MaskingRule7, ATurnWithoutAnEndDoesNotRunIntoTheNextMessage) {
  EncodeOptions options = chatml_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_close = slot_from_text("\n", {});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  const std::string text = error_of([&] { masked(kTwoTurns, options); });
  EXPECT_TRUE(contains(text, "the turn of messages[1] ends in <|im_start|>"));
  slots.user = slot_from_text("User: {{content}}\n", {"content"});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  EXPECT_TRUE(contains(error_of([&] { masked(kTwoTurns, options); }), "does not end in a special token"));
}

TEST(MaskingRule7, AnUntrainedTurnMayEndAsItLikes) {
  EncodeOptions options = chatml_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_close = slot_from_text("\n", {});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  options.chat.roles_to_train = {"user"};
  EXPECT_TRUE(contains(masked(chat_of({{"user", "Hi"}, {"assistant", "Yo"}}), options), "[Hi<|im_end|>]"));
}

// Rule 8: what is too long is dropped, cut or refused; a cut keeps what is trained.

TEST(MaskingRule8, TruncateLeftPromptCutsTheFrontOfThePrompt) {
  EncodeOptions options = chatml_options();
  options.overflow = Overflow::kTruncateLeftPrompt;
  options.seq_len = 14;  // "tant\n" … of 9 + 4 + … tokens
  RecordEncoder encoder(&kChats, options);
  EXPECT_EQ(encoded(encoder, kChats, chat_of({{"user", "Hi"}, {"assistant", "Yo"}})), "assistant\n[Yo<|im_end|>]\n");
  EXPECT_EQ(encoder.counts().num_truncated, 1u);
  EXPECT_EQ(encoder.counts().longest, 25u);
}

TEST(MaskingRule8, TruncateLeftPromptDropsARowWhoseAnswerAloneIsTooLong) {
  EncodeOptions options = chatml_options();
  options.overflow = Overflow::kTruncateLeftPrompt;
  options.seq_len = 5;  // the answer has 4, and one token must predict its first
  const ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "Yo"}});
  EXPECT_EQ(masked(chat, options), "\n[Yo<|im_end|>]\n");
  options.seq_len = 4;
  EXPECT_EQ(masked(chat, options), "(dropped: longer than train.seq_len without its prompt)");
}

TEST(MaskingRule8, TruncateDropsARowWhoseRestHasNothingToTrain) {
  EncodeOptions options = chatml_options();
  options.overflow = Overflow::kTruncate;
  options.seq_len = 22;
  const ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "Yo"}});
  EXPECT_EQ(masked(chat, options), kFirstQuestion + "[Y]");
  options.seq_len = 21;
  EXPECT_EQ(masked(chat, options), "(dropped: no token is trained in the first train.seq_len tokens)");
}

TEST(MaskingRule8, DropAndErrorAreLeftToPackingAndSplitDocumentsAreNotCut) {
  EncodeOptions options = chatml_options();
  options.seq_len = 4;
  const ChatRecord chat = chat_of({{"user", "Hi"}, {"assistant", "Yo"}});
  for (const Overflow overflow : {Overflow::kDrop, Overflow::kError}) {
    options.overflow = overflow;
    EXPECT_EQ(masked(chat, options), kFirstQuestion + "[Yo<|im_end|>]\n");
  }
  options.overflow = Overflow::kTruncate;
  options.splits_documents = true;
  EXPECT_EQ(masked(chat, options), kFirstQuestion + "[Yo<|im_end|>]\n");
}

// Rule 9: reasoning of earlier turns is left out unless it is to be kept.

ChatRecord reasoned() {
  ChatRecord chat = kTwoTurns;
  chat.messages[1].reasoning = "r1";
  chat.messages[3].reasoning = "r2";
  return chat;
}

TEST(MaskingRule9, ReasoningIsTrainedInTheLastTurnAndCountedWhereTheTemplateLeavesItOut) {
  RecordEncoder encoder(&kChats, chatml_options());
  EXPECT_EQ(encoded(encoder, kChats, reasoned()),
            kFirstQuestion + "[Yo<|im_end|>]" + kSecondQuestion + "[<think>\nr2\n</think>\nBy<|im_end|>]\n");
  EXPECT_EQ(encoder.counts().num_lost_reasoning, 1u);
}

TEST(MaskingRule9, ReasoningCanBeKeptInEveryTurn) {
  EncodeOptions options = chatml_options();
  options.chat.reasoning = Reasoning::kKeep;
  EXPECT_EQ(masked(reasoned(), options), kFirstQuestion + "[<think>\nr1\n</think>\nYo<|im_end|>]" + kSecondQuestion +
                                             "[<think>\nr2\n</think>\nBy<|im_end|>]\n");
}

TEST(MaskingRule9, ATemplateThatCannotKeepReasoningIsRefused) {
  EncodeOptions options = chatml_options();
  options.chat.reasoning = Reasoning::kKeep;
  SlotTemplate slots = chatml_slots();
  slots.reasoning.reset();
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  EXPECT_TRUE(contains(error_of([&] { masked(reasoned(), options); }),
                       "template chatml leaves out the reasoning of messages[1], and data.reasoning = \"keep\""));
}

TEST(MaskingRule9, ReasoningCanBeStrippedAlsoWhereItIsPartOfTheContent) {
  EncodeOptions options = chatml_options();
  options.chat.reasoning = Reasoning::kStrip;
  ChatRecord chat = reasoned();
  chat.messages[1].content.front().text = "<think>\nr3\n</think>\n\nYo";
  EXPECT_EQ(masked(chat, options), kFirstQuestion + "[Yo<|im_end|>]" + kSecondQuestion + "[By<|im_end|>]\n");
}

}  // namespace
}  // namespace chassis
