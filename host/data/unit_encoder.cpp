// Rows of pairs, labelled answers, classes, rollouts and teachers. Each answer is encoded with its whole conversation,
// as it would be alone; the sequences of a row become one document.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "host/data/record_encoder.hpp"
#include "host/data/units.hpp"

namespace chassis {
namespace {

// Probabilities may be rounded to slightly more than 1.
constexpr double kMostLogp = 1e-3;
constexpr const char* kSplitHint =
    "set split_pairs = true in the data set: then chosen answers are good, and rejected ones bad";

const char* record_name(const Record& record) {
  if (const auto* pair = std::get_if<PreferenceRecord>(&record))
    return pair->is_split ? "a pair that split_pairs divides" : "a preference pair";
  if (std::holds_alternative<LabelledRecord>(record)) return "a labelled answer";
  if (std::holds_alternative<ClassifiedRecord>(record)) return "a text with targets";
  if (std::holds_alternative<RolloutsRecord>(record)) return "a row of rollouts";
  if (std::holds_alternative<DistilledRecord>(record)) return "an answer with a teacher's tokens";
  return "a row without targets";
}

struct UnitName {
  const char* plural;
  uint32_t units;
  DataFormat format;
};
constexpr UnitName kUnitNames[] = {
    {"preference pairs", CHASSIS_OBJECTIVE_PAIRS, DataFormat::kPreference},
    {"labelled answers", CHASSIS_OBJECTIVE_LABELLED, DataFormat::kLabelled},
    {"texts with targets", CHASSIS_OBJECTIVE_TEXTS, DataFormat::kClassification},
    {"rows of rollouts", CHASSIS_OBJECTIVE_ROLLOUTS, DataFormat::kRollouts},
    {"answers with a teacher's tokens", CHASSIS_OBJECTIVE_ANSWERS, DataFormat::kDistillation},
};

uint32_t units_of(const Record& record) {
  if (const auto* pair = std::get_if<PreferenceRecord>(&record))
    return pair->is_split ? CHASSIS_OBJECTIVE_LABELLED : CHASSIS_OBJECTIVE_PAIRS;
  if (std::holds_alternative<LabelledRecord>(record)) return CHASSIS_OBJECTIVE_LABELLED;
  if (std::holds_alternative<ClassifiedRecord>(record)) return CHASSIS_OBJECTIVE_TEXTS;
  if (std::holds_alternative<DistilledRecord>(record)) return CHASSIS_OBJECTIVE_ANSWERS;
  return std::holds_alternative<RolloutsRecord>(record) ? CHASSIS_OBJECTIVE_ROLLOUTS : 0;
}

void require_finite(const char* what, double value) {
  if (!std::isfinite(value)) throw config_error(fmt::format("{} is {}, not a finite number", what, value));
}

void require_targets(const std::vector<double>& targets, const SequenceNeeds& needs) {
  if (static_cast<int64_t>(targets.size()) != needs.num_targets)
    throw config_error(
        fmt::format("the row has {} targets, and the objective reads {}", targets.size(), needs.num_targets));
  for (const double target : targets) {
    if (needs.num_classes == 0) {
      if (!std::isnan(target)) require_finite("a target", target);
    } else if (!(target >= 0 && target < static_cast<double>(needs.num_classes) && target == std::floor(target))) {
      throw config_error(
          fmt::format("the class is {}, and the objective has the classes 0 to {}", target, needs.num_classes - 1));
    }
  }
}

void require_rollouts(const RolloutsRecord& record, const SequenceNeeds& needs) {
  if (record.rollouts.empty()) throw config_error("the row has no rollouts");
  for (size_t i = 0; i < record.rollouts.size(); ++i) {
    const RolloutsRecord::Rollout& rollout = record.rollouts[i];
    require_finite(fmt::format("the reward of rollout {}", i).c_str(), rollout.reward);
    if (!needs.old_logps) continue;
    if (rollout.logps.empty())
      throw config_error(
          fmt::format("rollout {} has no log-probabilities of its tokens, and the objective needs them", i))
          .hint(
              "write those that the policy gave when it wrote the answer, or choose options of [objective] that do "
              "without them");
    for (const double logp : rollout.logps)
      if (!std::isfinite(logp) || logp > kMostLogp)
        throw config_error(
            fmt::format("rollout {} has the value {} among its log-probabilities, which are at most 0", i, logp));
  }
}

void require_teacher(const TeacherFacts& teacher, const SequenceNeeds& needs) {
  const auto largest = std::ranges::max_element(teacher.counts);
  if (largest == teacher.counts.end() || *largest <= needs.top_k) return;
  throw config_error(fmt::format("the teacher gives {} tokens at position {} of its list, and the objective reads at "
                                 "most {}",
                                 *largest, largest - teacher.counts.begin(), needs.top_k))
      .hint(fmt::format("set objective.top_k = {}, or write fewer", *largest));
}

// An answer begins after the prompt, which is never trained.
void require_prompt_masked(const ChatRecord& chat) {
  for (size_t i = 0; i < std::min(chat.first_trained.value_or(0), chat.messages.size()); ++i) {
    const auto& content = chat.messages[i].content;
    const bool in_part = std::ranges::any_of(content, [](const ContentPart& part) { return part.train == true; });
    if (chat.messages[i].train == true || in_part)
      throw config_error(fmt::format("messages[{}] has `train` = true, and is a part of the prompt", i))
          .hint("an objective reads the answers alone; remove `train` from the prompt");
  }
}

size_t num_trained(const Document& answer) {
  return answer.labels.size() - static_cast<size_t>(std::ranges::count(answer.labels, kIgnoreLabel));
}

// The index of the last trained token.
size_t last_trained(const Document& answer) {
  size_t i = answer.labels.size() - 1;
  while (answer.labels[i] == kIgnoreLabel) --i;
  return i;
}

}  // namespace

// True if no token is predicted: sequences are texts, of which the last token is scored.
bool RecordEncoder::reads_whole_texts() const {
  return options_.sequences && options_.sequences->units == CHASSIS_OBJECTIVE_TEXTS;
}

bool RecordEncoder::learns_to_stop() const { return !options_.sequences || !options_.sequences->scores; }

// Errors that data.on_refused does not turn into dropped rows.
void RecordEncoder::require_unit(const Record& record, const SourcePosition& where) const {
  const SequenceNeeds& needs = *options_.sequences;
  try {
    if (units_of(record) != needs.units) {
      const auto wanted = std::ranges::find(kUnitNames, needs.units, &UnitName::units);
      CHASSIS_CHECK(wanted != std::end(kUnitNames), "the unit of the objective");
      std::string hint = fmt::format("set the format of the data set to \"{}\", or choose another objective.plugin",
                                     to_text(wanted->format));
      if (std::holds_alternative<PreferenceRecord>(record) && needs.units == CHASSIS_OBJECTIVE_LABELLED)
        hint = kSplitHint;
      throw config_error(fmt::format("the row is {}, and the objective reads {}", record_name(record), wanted->plural))
          .hint(hint);
    }
    if (const auto* pair = std::get_if<PreferenceRecord>(&record)) {
      if (pair->margin) require_finite("the margin", *pair->margin);
      for (const ChatRecord* chat : {&pair->chosen, &pair->rejected}) require_prompt_masked(*chat);
    } else if (const auto* labelled = std::get_if<LabelledRecord>(&record)) {
      require_prompt_masked(labelled->answer);
    } else if (const auto* classified = std::get_if<ClassifiedRecord>(&record)) {
      require_targets(classified->targets, needs);
    } else if (const auto* distilled = std::get_if<DistilledRecord>(&record)) {
      require_teacher(distilled->teacher, needs);
      if (const auto* chat = std::get_if<ChatRecord>(&distilled->answer)) require_prompt_masked(*chat);
    } else {
      const auto& rollouts = std::get<RolloutsRecord>(record);
      require_rollouts(rollouts, needs);
      for (const RolloutsRecord::Rollout& rollout : rollouts.rollouts) require_prompt_masked(rollout.answer);
    }
  } catch (const Error& error) {
    throw Error(error.code(), where, error.message()).hint(error.hint_text());
  }
}

void RecordEncoder::encode_unit(const Record& record, Document& unit) {
  if (const auto* pair = std::get_if<PreferenceRecord>(&record))
    encode_pair(*pair, unit);
  else if (const auto* labelled = std::get_if<LabelledRecord>(&record))
    add_answer(labelled->answer, {.targets = {labelled->is_good ? 1.0 : 0.0}}, unit);
  else if (const auto* classified = std::get_if<ClassifiedRecord>(&record))
    encode_classified(*classified, unit);
  else if (const auto* distilled = std::get_if<DistilledRecord>(&record))
    encode_distilled(*distilled, unit);
  else
    encode_rollouts(std::get<RolloutsRecord>(record), unit);
}

void RecordEncoder::encode_pair(const PreferenceRecord& record, Document& unit) {
  if (record.is_split) {
    add_answer(record.chosen, {.targets = {1.0}}, unit);
    add_answer(record.rejected, {.targets = {0.0}}, unit);
  } else {
    const double margin = record.margin.value_or(0);
    add_answer(record.chosen, {.role = SequenceRole::kChosen, .margin = margin}, unit);
    add_answer(record.rejected, {.role = SequenceRole::kRejected, .margin = margin}, unit);
  }
  if (!drop_reason_.empty()) return;
  const auto middle = static_cast<size_t>(unit.sequences.front().length);
  const auto ids = std::span(unit.ids), labels = std::span(unit.labels);
  if (std::ranges::equal(ids.first(middle), ids.subspan(middle))) drop_reason_ = "both answers are equal";
  const size_t chosen = prompt_length(labels.first(middle)), rejected = prompt_length(labels.subspan(middle));
  num_other_prompts_ += !std::ranges::equal(ids.first(chosen), ids.subspan(middle, rejected));
}

void RecordEncoder::encode_classified(const ClassifiedRecord& record, Document& unit) {
  if (const auto* text = std::get_if<TextRecord>(&record.input))
    encode_text(*text, unit);
  else
    encode_chat(std::get<ChatRecord>(record.input), unit);
  if (unit.ids.empty()) return;
  unit.labels.assign(unit.ids.size(), kIgnoreLabel);
  unit.sequences.push_back({.length = static_cast<int64_t>(unit.ids.size()), .targets = record.targets});
  if (!record.targets.empty() && std::ranges::all_of(record.targets, [](double target) { return std::isnan(target); }))
    drop_reason_ = "no target is given";
}

void RecordEncoder::encode_rollouts(const RolloutsRecord& record, Document& unit) {
  for (const RolloutsRecord::Rollout& rollout : record.rollouts) {
    SequenceFacts facts{.targets = {rollout.reward}};
    if (options_.sequences->old_logps)
      facts.old_logps = rollout.logps;
    else if (!rollout.logps.empty())
      ++counts_.num_unused_logps;
    add_answer(rollout.answer, std::move(facts), unit);
  }
}

void RecordEncoder::encode_distilled(const DistilledRecord& record, Document& unit) {
  SequenceFacts facts{.teacher = record.teacher};
  if (const auto* tokens = std::get_if<TokensRecord>(&record.answer))
    add_tokens(*tokens, std::move(facts), unit);
  else
    add_answer(std::get<ChatRecord>(record.answer), std::move(facts), unit);
}

// Fills an empty unit with a sequence of ids as they are.
void RecordEncoder::add_tokens(const TokensRecord& tokens, SequenceFacts facts, Document& unit) {
  if (tokens.ids.empty()) return;
  unit.ids = tokens.ids;
  unit.labels = tokens.labels.empty() ? tokens.ids : tokens.labels;
  if (are_labels_shifted(unit.ids, unit.labels)) ++counts_.num_shifted_labels;
  if (unit.labels.front() != kIgnoreLabel) {
    unit.labels.front() = kIgnoreLabel;  // no token before it predicts it
    ++counts_.num_untrained_first;
  }
  if (num_trained(unit) == 0)
    drop_reason_ = "no token of an answer is trained";
  else
    take_teacher(unit, facts, false);
  facts.length = static_cast<int64_t>(unit.ids.size());
  unit.sequences.push_back(std::move(facts));
}

// Leaves the entries of the trained tokens. The teacher gives them alone, or those of all tokens of the row; and none
// for the end of the turn if that is the template's (`ends_in_stop`), which is then not trained.
void RecordEncoder::take_teacher(Document& answer, SequenceFacts& facts, bool ends_in_stop) {
  const TeacherFacts given = std::exchange(facts.teacher, {});
  const size_t count = num_trained(answer), num_given = given.counts.size();
  const bool is_whole_row = num_given == answer.ids.size();
  if (!is_whole_row && num_given + 1 == count && ends_in_stop)
    answer.labels[last_trained(answer)] = kIgnoreLabel;
  else if (!is_whole_row && num_given != count)
    throw config_error(
        fmt::format(
            "the teacher gives the likeliest tokens of {} positions, but the answer has {} tokens, and the row {}",
            num_given, count, answer.ids.size()))
        .hint(
            "the teacher must have the same tokenizer, and write the answer in the same template; give one list for "
            "each token of the answer, with the end of the turn or without it, or one for each token of the row");
  size_t entry = 0;
  for (size_t i = 0; i < num_given; ++i) {
    const auto from = static_cast<ptrdiff_t>(entry);
    entry += given.counts[i];
    if (is_whole_row && answer.labels[i] == kIgnoreLabel) continue;
    const auto to = static_cast<ptrdiff_t>(entry);
    facts.teacher.counts.push_back(given.counts[i]);
    facts.teacher.ids.insert(facts.teacher.ids.end(), given.ids.begin() + from, given.ids.begin() + to);
    facts.teacher.logps.insert(facts.teacher.logps.end(), given.logps.begin() + from, given.logps.begin() + to);
  }
  if (facts.teacher.ids.empty()) drop_reason_ = "the teacher gives no token for an answer";
}

// Appends a prompt and its answer as a sequence, or says why the row is dropped.
void RecordEncoder::add_answer(const ChatRecord& chat, SequenceFacts facts, Document& unit) {
  Document answer;
  std::vector<size_t> partly_inside = std::exchange(partly_inside_, {});
  encode_chat(chat, answer);
  if (!answer.labels.empty() && answer.labels.front() != kIgnoreLabel) {
    answer.labels.front() = kIgnoreLabel;  // no token before it predicts it
    ++counts_.num_untrained_first;
  }
  const bool is_rollout = options_.sequences->units == CHASSIS_OBJECTIVE_ROLLOUTS;
  int32_t end = -1;
  if (num_trained(answer) == 0)
    drop_reason_ = "no token of an answer is trained";
  else if (!is_rollout && is_nothing_but_an_end(answer, end))  // a policy may answer nothing
    drop_reason_ = "an answer is empty";
  else if (!facts.old_logps.empty() && !take_logps(answer, facts))
    drop_reason_ = "the log-probabilities of a rollout are not one for each token of its answer";
  else if (options_.sequences->top_k > 0)
    take_teacher(answer, facts, is_stop(answer.labels[last_trained(answer)]));
  if (drop_reason_.empty() && !is_stop(answer.labels[last_trained(answer)])) ++num_open_ends_;

  const size_t begin = unit.ids.size();
  for (const size_t i : partly_inside_) partly_inside.push_back(begin + i);
  partly_inside_ = std::move(partly_inside);
  unit.ids.insert(unit.ids.end(), answer.ids.begin(), answer.ids.end());
  unit.labels.insert(unit.labels.end(), answer.labels.begin(), answer.labels.end());
  facts.length = static_cast<int64_t>(answer.ids.size());
  unit.sequences.push_back(std::move(facts));
}

// Log-probabilities belong to the trained tokens. The end of the turn is the template's if the policy was stopped
// before it wrote one.
bool RecordEncoder::take_logps(Document& answer, const SequenceFacts& facts) const {
  const size_t count = num_trained(answer);
  if (facts.old_logps.size() == count) return true;
  const size_t last = last_trained(answer);
  if (facts.old_logps.size() + 1 != count || !is_stop(answer.labels[last])) return false;
  answer.labels[last] = kIgnoreLabel;
  return true;
}

void RecordEncoder::fit_unit(Document& unit) {
  if (!options_.cuts_documents() || options_.sequences->mismatches) return;
  if (options_.sequences->units == CHASSIS_OBJECTIVE_LABELLED && unit.sequences.size() > 1) return;
  const auto limit = static_cast<size_t>(options_.seq_len);
  if (unit.ids.size() <= limit) return;
  if (options_.overflow == Overflow::kTruncate) {  // only of texts
    unit.ids.resize(limit);
    unit.labels.resize(limit);
    unit.sequences.front().length = options_.seq_len;
  } else if (!cut_prompts(unit, limit)) {
    drop_reason_ = kNoPromptToCut;
    return;
  }
  partly_inside_.clear();  // their places have changed
  ++counts_.num_truncated;
}

}  // namespace chassis
