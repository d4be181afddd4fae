// Pairs, labelled answers, classes and rollouts as documents with sequences.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/data/record_encoder.hpp"
#include "tests/host/data/chat_support.hpp"

namespace chassis {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

SequenceNeeds needs_of(uint32_t units) {
  SequenceNeeds needs;
  needs.units = units;
  const bool has_teacher = units == CHASSIS_OBJECTIVE_ANSWERS;
  needs.num_targets = units == CHASSIS_OBJECTIVE_PAIRS || has_teacher ? 0 : 1;
  if (has_teacher) needs.top_k = 2;
  return needs;
}

EncodeOptions unit_options(const SequenceNeeds& needs) {
  EncodeOptions options = chatml_options();
  options.sequences = needs;
  return options;
}
EncodeOptions unit_options(uint32_t units = CHASSIS_OBJECTIVE_PAIRS) { return unit_options(needs_of(units)); }

ChatRecord answer_of(const std::string& prompt, const std::string& answer) {
  ChatRecord chat = chat_of({{"user", prompt}, {"assistant", answer}});
  chat.first_trained = 1;
  return chat;
}

PreferenceRecord pair_of(const std::string& prompt, const std::string& better, const std::string& worse) {
  return {answer_of(prompt, better), answer_of(prompt, worse), {}};
}

RolloutsRecord rollouts_of(const std::vector<std::pair<std::string, std::vector<double>>>& answers) {
  RolloutsRecord record;
  for (const auto& [text, logps] : answers)
    record.rollouts.push_back({answer_of("q", text), static_cast<double>(record.rollouts.size()), logps});
  return record;
}

// Each sequence with its trained tokens in brackets; "(dropped: reason)" if the row was dropped. Checks that sequences
// are all of the document, and that no first token is trained.
std::vector<std::string> parts(RecordEncoder& encoder, const Record& record, Document* out = nullptr) {
  Document document;
  if (!encoder.encode(record, {"chat.jsonl", 7, 0}, document)) return {"(dropped: " + encoder.drop_reason() + ")"};
  std::vector<std::string> texts;
  size_t i = 0;
  for (const SequenceFacts& facts : document.sequences) {
    std::string text;
    EXPECT_EQ(document.labels.at(i), kIgnoreLabel);
    bool inside = false;
    for (const size_t end = i + static_cast<size_t>(facts.length); i < end; ++i) {
      const bool trained = document.labels.at(i) != kIgnoreLabel;
      EXPECT_EQ(document.labels[i], trained ? document.ids[i] : kIgnoreLabel);
      if (trained != inside) text += trained ? "[" : "]";
      inside = trained;
      text += kTokenizer.decode(std::span(&document.ids.at(i), 1), true);
    }
    texts.push_back(text + (inside ? "]" : ""));
  }
  EXPECT_EQ(i, document.ids.size());
  EXPECT_EQ(i, document.labels.size());
  if (out) *out = std::move(document);
  return texts;
}

std::vector<std::string> parts(const EncodeOptions& options, const Record& record, Document* out = nullptr) {
  RecordEncoder encoder(&kTokenizer, options);
  return parts(encoder, record, out);
}

using Parts = std::vector<std::string>;

TEST(UnitEncoder, MakesOneDocumentOfAPair) {
  PreferenceRecord pair = pair_of("why", "yes", "no no");
  pair.margin = 0.5;
  Document document;
  EXPECT_EQ(parts(unit_options(), pair, &document),
            (Parts{"<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\n",
                   "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n[no no<|im_end|>]\n"}));
  ASSERT_EQ(document.sequences.size(), 2u);
  EXPECT_EQ(document.sequences[0], (SequenceFacts{.role = SequenceRole::kChosen, .length = 27, .margin = 0.5}));
  EXPECT_EQ(document.sequences[1], (SequenceFacts{.role = SequenceRole::kRejected, .length = 29, .margin = 0.5}));
}

// Each answer has the ids and labels that it would have alone.
TEST(UnitEncoder, EncodesEachAnswerAsItWouldBeAlone) {
  const PreferenceRecord pair = pair_of("x", "one\n\ntwo a", " a");
  Document unit;
  parts(unit_options(), pair, &unit);
  std::vector<int32_t> ids, labels;
  for (const ChatRecord& chat : {pair.chosen, pair.rejected}) {
    Document alone;
    RecordEncoder encoder(&kTokenizer, chatml_options());
    ASSERT_TRUE(encoder.encode(chat, {}, alone));
    ids.insert(ids.end(), alone.ids.begin(), alone.ids.end());
    labels.insert(labels.end(), alone.labels.begin(), alone.labels.end());
  }
  EXPECT_EQ(unit.ids, ids);
  EXPECT_EQ(unit.labels, labels);
}

TEST(UnitEncoder, GivesALabelledAnswerItsClassAsTarget) {
  for (const bool is_good : {true, false}) {
    Document document;
    EXPECT_EQ(
        parts(unit_options(CHASSIS_OBJECTIVE_LABELLED), LabelledRecord{answer_of("q", "yes"), is_good}, &document),
        (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\n"}));
    EXPECT_EQ(document.sequences.at(0),
              (SequenceFacts{.length = static_cast<int64_t>(document.ids.size()), .targets = {is_good ? 1.0 : 0.0}}));
  }
}

TEST(UnitEncoder, MakesTwoLabelledAnswersOfASplitPair) {
  PreferenceRecord pair = pair_of("why", "yes", "no no");
  pair.is_split = true;
  Document document;
  EXPECT_EQ(parts(unit_options(CHASSIS_OBJECTIVE_LABELLED), pair, &document),
            (Parts{"<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n[yes<|im_end|>]\n",
                   "<|im_start|>user\nwhy<|im_end|>\n<|im_start|>assistant\n[no no<|im_end|>]\n"}));
  ASSERT_EQ(document.sequences.size(), 2u);
  EXPECT_EQ(document.sequences[0], (SequenceFacts{.length = 27, .targets = {1}}));
  EXPECT_EQ(document.sequences[1], (SequenceFacts{.length = 29, .targets = {0}}));
  EXPECT_TRUE(contains(error_of([&] { parts(unit_options(), pair); }), "a pair that split_pairs divides"));
  PreferenceRecord equal = pair_of("why", "yes", "yes");
  equal.is_split = true;
  EXPECT_EQ(parts(unit_options(CHASSIS_OBJECTIVE_LABELLED), equal), (Parts{"(dropped: both answers are equal)"}));
}

TEST(UnitEncoder, PredictsNothingInAClassifiedText) {
  SequenceNeeds needs = needs_of(CHASSIS_OBJECTIVE_TEXTS);
  needs.scores = true;
  needs.num_classes = 3;
  Document document;
  RecordEncoder encoder(&kTokenizer, unit_options(needs));
  EXPECT_EQ(parts(encoder, ClassifiedRecord{TextRecord{"good"}, {2}}, &document), (Parts{"good</s>"}));
  EXPECT_EQ(document.sequences.at(0), (SequenceFacts{.length = 5, .targets = {2}}));
  EXPECT_EQ(document.labels, std::vector<int32_t>(5, kIgnoreLabel));
  EXPECT_EQ(parts(encoder, ClassifiedRecord{chat_of({{"user", "q"}, {"assistant", ""}}), {0}}),
            (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"}));
  EXPECT_EQ(encoder.counts().num_empty_answers, 0u);
  EXPECT_EQ(encoder.counts().num_trained_tokens, 0u);
  const auto refused = [&](std::vector<double> targets) {
    return error_of([&] { parts(encoder, ClassifiedRecord{TextRecord{"good"}, std::move(targets)}); });
  };
  EXPECT_TRUE(contains(refused({3}), "chat.jsonl:7: the class is 3, and the objective has the classes 0 to 2"));
  EXPECT_TRUE(contains(refused({0.5}), "the class is 0.5"));
  EXPECT_TRUE(contains(refused({-1}), "the class is -1"));
  EXPECT_TRUE(contains(refused({kNaN}), "the class is nan"));
  EXPECT_TRUE(contains(refused({1, 1}), "the row has 2 targets, and the objective reads 1"));
}

TEST(UnitEncoder, AcceptsMissingValuesButNotMissingAll) {
  SequenceNeeds needs = needs_of(CHASSIS_OBJECTIVE_TEXTS);
  needs.scores = true;
  needs.num_targets = 2;
  RecordEncoder encoder(&kTokenizer, unit_options(needs));
  Document document;
  EXPECT_EQ(parts(encoder, ClassifiedRecord{TextRecord{"a"}, {kNaN, -1.5}}, &document), (Parts{"a</s>"}));
  EXPECT_TRUE(std::isnan(document.sequences.at(0).targets.at(0)));
  EXPECT_EQ(document.sequences.at(0).targets.at(1), -1.5);
  EXPECT_EQ(parts(encoder, ClassifiedRecord{TextRecord{"a"}, {kNaN, kNaN}}), (Parts{"(dropped: no target is given)"}));
  EXPECT_TRUE(contains(error_of([&] {
                         parts(encoder, ClassifiedRecord{TextRecord{"a"}, {kInfinity, 0}});
                       }),
                       "a target is inf, not a finite number"));
}

TEST(UnitEncoder, GivesEachRolloutItsRewardAndItsLogps) {
  SequenceNeeds needs = needs_of(CHASSIS_OBJECTIVE_ROLLOUTS);
  needs.old_logps = true;
  Document document;
  RecordEncoder encoder(&kTokenizer, unit_options(needs));
  EXPECT_EQ(parts(encoder, rollouts_of({{"ab", {-1, -2, -3}}, {"c", {-4, 0.0005}}}), &document),
            (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[ab<|im_end|>]\n",
                   "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[c<|im_end|>]\n"}));
  EXPECT_EQ(document.sequences.at(0), (SequenceFacts{.length = 24, .targets = {0}, .old_logps = {-1, -2, -3}}));
  EXPECT_EQ(document.sequences.at(1), (SequenceFacts{.length = 23, .targets = {1}, .old_logps = {-4, 0.0005}}));
  EXPECT_EQ(encoder.counts().num_open_ends, 0u);
}

// An answer that was stopped by its length has no log-probability of an end.
TEST(UnitEncoder, DoesNotTrainTheEndOfARolloutThatHasNone) {
  SequenceNeeds needs = needs_of(CHASSIS_OBJECTIVE_ROLLOUTS);
  needs.old_logps = true;
  RecordEncoder encoder(&kTokenizer, unit_options(needs));
  EXPECT_EQ(parts(encoder, rollouts_of({{"ab", {-1, -2}}})),
            (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[ab]<|im_end|>\n"}));
  EXPECT_EQ(encoder.counts().num_open_ends, 1u);
  EXPECT_EQ(encoder.counts().changes().at("answers do not end in a token that ends generation"), 1u);
  for (const std::vector<double>& logps : {std::vector<double>{-1}, {-1, -2, -3, -4}})
    EXPECT_EQ(parts(encoder, rollouts_of({{"ab", logps}})),
              (Parts{"(dropped: the log-probabilities of a rollout are not one for each token of its answer)"}));
}

TEST(UnitEncoder, RefusesRolloutsWithoutUsableNumbers) {
  SequenceNeeds needs = needs_of(CHASSIS_OBJECTIVE_ROLLOUTS);
  needs.old_logps = true;
  RecordEncoder encoder(&kTokenizer, unit_options(needs));
  const auto refused = [&](const RolloutsRecord& record) { return error_of([&] { parts(encoder, record); }); };
  EXPECT_TRUE(contains(refused(rollouts_of({{"a", {-1, -1}}, {"b", {}}})), "rollout 1 has no log-probabilities"));
  EXPECT_TRUE(contains(refused(rollouts_of({{"a", {-1, 0.2}}})), "rollout 0 has the value 0.2 among"));
  EXPECT_TRUE(contains(refused(rollouts_of({{"a", {-kInfinity, 0}}})), "rollout 0 has the value -inf among"));
  EXPECT_TRUE(contains(refused({}), "the row has no rollouts"));
  RolloutsRecord record = rollouts_of({{"a", {-1, -1}}});
  record.rollouts[0].reward = kNaN;
  EXPECT_TRUE(contains(refused(record), "the reward of rollout 0 is nan, not a finite number"));
}

TEST(UnitEncoder, GivesEachTokenOfAnAnswerTheEntriesOfItsTeacher) {
  RecordEncoder encoder(&kTokenizer, unit_options(CHASSIS_OBJECTIVE_ANSWERS));
  Document document;
  const TeacherFacts three{{2, 0, 1}, {1, 2, 3}, {-1, -2, -3}};
  EXPECT_EQ(parts(encoder, DistilledRecord{answer_of("q", "ab"), three}, &document),
            (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[ab<|im_end|>]\n"}));
  EXPECT_EQ(document.sequences.at(0), (SequenceFacts{.length = 24, .teacher = three}));
  // Without an end, which is then not trained.
  const TeacherFacts two{{1, 1}, {1, 2}, {-1, -2}};
  EXPECT_EQ(parts(encoder, DistilledRecord{answer_of("q", "ab"), two}, &document),
            (Parts{"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[ab]<|im_end|>\n"}));
  EXPECT_EQ(document.sequences.at(0).teacher, two);
  EXPECT_EQ(parts(encoder, DistilledRecord{answer_of("q", "ab"), {{0, 0, 0}, {}, {}}}),
            (Parts{"(dropped: the teacher gives no token for an answer)"}));
}

TEST(UnitEncoder, TakesTheEntriesOfTrainedIdsFromAWholeRow) {
  RecordEncoder encoder(&kTokenizer, unit_options(CHASSIS_OBJECTIVE_ANSWERS));
  Document document;
  const TokensRecord tokens{{5, 6, 7, 8}, {-100, -100, 7, 8}};
  const TeacherFacts of_row{{1, 1, 1, 2}, {1, 2, 3, 4, 5}, {-1, -2, -3, -4, -5}},
      of_answer{{1, 2}, {3, 4, 5}, {-3, -4, -5}};
  for (const TeacherFacts& teacher : {of_row, of_answer}) {
    ASSERT_TRUE(encoder.encode(DistilledRecord{tokens, teacher}, {"rows.jsonl", 7, 0}, document));
    EXPECT_EQ(document.ids, tokens.ids);
    EXPECT_EQ(document.labels, tokens.labels);
    EXPECT_EQ(document.sequences, (std::vector<SequenceFacts>{{.length = 4, .teacher = of_answer}}));
  }
}

TEST(UnitEncoder, RefusesATeacherOfOtherTokens) {
  RecordEncoder encoder(&kTokenizer, unit_options(CHASSIS_OBJECTIVE_ANSWERS));
  const auto refused = [&](const TeacherFacts& teacher) {
    return error_of([&] { parts(encoder, DistilledRecord{answer_of("q", "ab"), teacher}); });
  };
  EXPECT_TRUE(contains(refused({{1, 1, 1, 1}, {1, 2, 3, 4}, {-1, -1, -1, -1}}),
                       "of 4 positions, but the answer has 3 tokens, and the row 24"));
  EXPECT_TRUE(contains(refused({{1}, {1}, {-1}}), "of 1 positions, but the answer has 3 tokens"));
  EXPECT_TRUE(contains(refused({{1, 3, 1}, {1, 2, 3, 4, 5}, {-1, -1, -2, -3, -1}}),
                       "gives 3 tokens at position 1 of its list, and the objective reads at most 2"));
}

TEST(UnitEncoder, CountsLogpsThatTheObjectiveDoesNotNeed) {
  RecordEncoder encoder(&kTokenizer, unit_options(CHASSIS_OBJECTIVE_ROLLOUTS));
  Document document;
  parts(encoder, rollouts_of({{"a", {-1, -1}}, {"", {-1}}, {"c", {}}}), &document);
  EXPECT_EQ(document.sequences.size(), 3u) << "a policy may answer nothing";
  for (const SequenceFacts& facts : document.sequences) EXPECT_TRUE(facts.old_logps.empty());
  EXPECT_EQ(encoder.counts().num_unused_logps, 2u);
  EXPECT_EQ(encoder.counts().num_empty_answers, 1u);
}

TEST(UnitEncoder, DropsPairsThatCompareNothing) {
  RecordEncoder encoder(&kTokenizer, unit_options());
  EXPECT_EQ(parts(encoder, pair_of("q", "same", "same")), (Parts{"(dropped: both answers are equal)"}));
  EXPECT_EQ(parts(encoder, pair_of("q", "yes", "")), (Parts{"(dropped: an answer is empty)"}));
  EXPECT_EQ(parts(encoder, pair_of("q", " \n", "no")), (Parts{"(dropped: an answer is empty)"}));
  PreferenceRecord untrained = pair_of("q", "yes", "no");
  untrained.chosen.messages.back().train = false;
  EXPECT_EQ(parts(encoder, untrained), (Parts{"(dropped: no token of an answer is trained)"}));
  EXPECT_EQ(parts(encoder, pair_of("q", "yes", "no")).size(), 2u);
  EXPECT_EQ(encoder.counts().num_rows, 5u);
  EXPECT_EQ(encoder.counts().dropped.at("both answers are equal"), 1u);
  EXPECT_EQ(encoder.counts().dropped.at("an answer is empty"), 2u);
  EXPECT_EQ(encoder.counts().num_empty_answers, 0u) << "which says that their end is trained";
}

TEST(UnitEncoder, RefusesAMarginThatIsNotFinite) {
  PreferenceRecord pair = pair_of("q", "yes", "no");
  for (const double margin : {kNaN, kInfinity}) {
    pair.margin = margin;
    EncodeOptions options = unit_options();
    options.skips_refused = true;  // which is about templates
    EXPECT_TRUE(contains(error_of([&] { parts(options, pair); }), "chat.jsonl:7: the margin is "));
  }
}

TEST(UnitEncoder, RefusesAPromptThatIsToBeTrained) {
  PreferenceRecord pair = pair_of("q", "yes", "no");
  pair.rejected.messages[0].train = true;
  EXPECT_TRUE(contains(error_of([&] { parts(unit_options(), pair); }),
                       "chat.jsonl:7: messages[0] has `train` = true, and is a part of the prompt"));
  pair.rejected.messages[0].train = false;
  EXPECT_EQ(parts(unit_options(), pair).size(), 2u);
  pair.rejected.messages[0].content[0].train = true;
  EXPECT_TRUE(contains(error_of([&] { parts(unit_options(), pair); }), "messages[0] has `train` = true"));
}

TEST(UnitEncoder, RefusesRowsOfAnotherObjective) {
  EXPECT_TRUE(contains(error_of([&] { parts(unit_options(CHASSIS_OBJECTIVE_LABELLED), pair_of("q", "a", "b")); }),
                       "chat.jsonl:7: the row is a preference pair, and the objective reads labelled answers\nhint: "
                       "set split_pairs = true"));
  EXPECT_TRUE(contains(error_of([&] { parts(unit_options(), answer_of("q", "a")); }),
                       "the row is a row without targets, and the objective reads preference pairs"));
  EXPECT_TRUE(contains(error_of([&] {
                         parts(chatml_options(), LabelledRecord{answer_of("q", "a"), true});
                       }),
                       "a labelled answer cannot be trained without an objective"));
}

TEST(UnitEncoder, SkipsRowsThatTheTemplateRefuses) {
  EncodeOptions options = unit_options();
  PreferenceRecord pair = pair_of("q", "yes", "no");
  pair.chosen.messages[0].role = "stranger";
  EXPECT_TRUE(contains(error_of([&] { parts(options, pair); }), "chat.jsonl:7: "));
  options.skips_refused = true;
  const Parts dropped = parts(options, pair);
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_TRUE(contains(dropped[0], "(dropped: refused: "));
}

// A template whose header ends inside a token of the answer " a".
EncodeOptions straddling_options() {
  EncodeOptions options = unit_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_open = slot_from_text("<|im_start|>assistant: ", {"content", "name", "arguments"});
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  return options;
}

TEST(UnitEncoder, CountsPairsWhosePromptsHaveOtherTokens) {
  RecordEncoder encoder(&kTokenizer, straddling_options());
  const std::string prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant:";
  EXPECT_EQ(parts(encoder, pair_of("q", "ab", "b")),
            (Parts{prompt + " a[b<|im_end|>]\n", prompt + " [b<|im_end|>]\n"}));
  EXPECT_EQ(encoder.partly_inside(), (std::vector<size_t>{20}));
  EXPECT_EQ(parts(encoder, pair_of("q", "c", "ad")),
            (Parts{prompt + " [c<|im_end|>]\n", prompt + " a[d<|im_end|>]\n"}));
  EXPECT_EQ(encoder.partly_inside(), (std::vector<size_t>{24 + 20})) << "in the second sequence, after 24 tokens";
  EXPECT_EQ(parts(encoder, pair_of("q", "ab", "ac")),
            (Parts{prompt + " a[b<|im_end|>]\n", prompt + " a[c<|im_end|>]\n"}));
  EXPECT_EQ(encoder.counts().num_other_prompts, 2u);
  EXPECT_EQ(encoder.counts().num_partly_inside, 4u);
  EXPECT_EQ(encoder.counts().num_masked_beginnings, 4u);
}

// The pair has 27 + 29 tokens, of which each prompt has 22.
TEST(UnitEncoder, CutsEquallyManyTokensFromEachPrompt) {
  const PreferenceRecord pair = pair_of("why", "yes", "no no");
  EncodeOptions options = unit_options();
  options.overflow = Overflow::kTruncateLeftPrompt;
  options.seq_len = 56;
  EXPECT_EQ(parts(options, pair)[0].size(), parts(unit_options(), pair)[0].size());
  options.seq_len = 25;  // 31 are to go, so 16 of each
  RecordEncoder encoder(&kTokenizer, options);
  Document document;
  EXPECT_EQ(parts(encoder, pair, &document), (Parts{"stant\n[yes<|im_end|>]\n", "stant\n[no no<|im_end|>]\n"}));
  EXPECT_EQ(document.sequences[0].length, 11);
  EXPECT_EQ(document.sequences[1].length, 13);
  EXPECT_EQ(encoder.counts().num_truncated, 1u);
  options.seq_len = 14;  // 21 of each: one token is left that predicts the first one of the answer
  EXPECT_EQ(parts(options, pair), (Parts{"\n[yes<|im_end|>]\n", "\n[no no<|im_end|>]\n"}));
  options.seq_len = 13;
  EXPECT_EQ(parts(options, pair), (Parts{"(dropped: longer than train.seq_len without its prompt)"}));
}

TEST(UnitEncoder, LeavesLongUnitsToThePackingByTheOtherRules) {
  for (const Overflow overflow : {Overflow::kDrop, Overflow::kError}) {
    EncodeOptions options = unit_options();
    options.overflow = overflow;
    options.seq_len = 10;
    EXPECT_EQ(parts(options, pair_of("why", "yes", "no no")), parts(unit_options(), pair_of("why", "yes", "no no")));
  }
}

TEST(UnitEncoder, TruncatesOnlyClassifiedTexts) {
  EncodeOptions options = unit_options();
  options.overflow = Overflow::kTruncate;
  options.seq_len = 3;
  EXPECT_TRUE(contains(error_of([&] { RecordEncoder(&kTokenizer, options); }),
                       "data.overflow = \"truncate\" would cut the answers that the objective compares"));
  options.sequences = needs_of(CHASSIS_OBJECTIVE_TEXTS);
  options.sequences->scores = true;
  const ClassifiedRecord record{TextRecord{"abcdef"}, {1}};
  EXPECT_EQ(parts(options, record), (Parts{"abc"}));
  options.overflow = Overflow::kTruncateLeftPrompt;
  EXPECT_EQ(parts(options, record), (Parts{"ef</s>"})) << "which keeps the end of texts";
}

// Scores are read at the last token, so turns may end in any token.
TEST(UnitEncoder, NeedsNoStopForScores) {
  EncodeOptions options = unit_options();
  SlotTemplate slots = chatml_slots();
  slots.stop = {slot_from_text("</s>", {"content", "name", "arguments"})};
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  const PreferenceRecord pair = pair_of("q", "yes", "no");
  EXPECT_TRUE(contains(error_of([&] { parts(options, pair); }), "the model will not learn to stop"));
  options.sequences->scores = true;
  RecordEncoder encoder(&kTokenizer, options);
  EXPECT_EQ(parts(encoder, pair).size(), 2u);
  EXPECT_EQ(encoder.counts().num_open_ends, 2u);
}

TEST(UnitEncoder, MasksTheFirstTokenOfEachSequence) {
  EncodeOptions options = unit_options();
  SlotTemplate slots = chatml_slots();
  slots.assistant_open = {};
  options.chat.slots = std::make_shared<SlotTemplate>(slots);
  PreferenceRecord pair{chat_of({{"assistant", "xyz"}}), chat_of({{"assistant", "uvw"}}), {}};
  RecordEncoder encoder(&kTokenizer, options);
  EXPECT_EQ(parts(encoder, pair), (Parts{"x[yz<|im_end|>]\n", "u[vw<|im_end|>]\n"}));
  EXPECT_EQ(encoder.counts().num_untrained_first, 2u);
}

TEST(UnitEncoder, ChangesItsFingerprintWithTheNeeds) {
  const auto fingerprint = [](const EncodeOptions& options) {
    return RecordEncoder(&kTokenizer, options).fingerprint();
  };
  EncodeOptions options = unit_options(CHASSIS_OBJECTIVE_LABELLED), other = options;
  EXPECT_NE(fingerprint(options), fingerprint(chatml_options()));
  EXPECT_EQ(fingerprint(options), fingerprint(other));
  other.sequences->mismatches = true;
  EXPECT_NE(fingerprint(options), fingerprint(other));
  other = options;
  other.seq_len = 17;
  EXPECT_EQ(fingerprint(options), fingerprint(other));
  options.overflow = other.overflow = Overflow::kTruncateLeftPrompt;
  EXPECT_NE(fingerprint(options), fingerprint(other));
}

}  // namespace
}  // namespace chassis
