// Compares texts byte by byte, apart from white space at both ends.
#include "host/generate/scorer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace chassis {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kWhiteSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

Error bad_expected(const std::string& what) {
  return config_error(what).hint(
      "give a text, or a list of texts of which any counts: {\"prompt\": …, \"expected\": …}");
}

std::vector<std::string> expected_of(const Json& row) {
  if (!row.contains("expected")) throw bad_expected("has no 'expected', the right answer");
  const Json& value = row["expected"];
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) throw bad_expected(fmt::format("'expected' must be a text, not {}", value.type_name()));
  if (value.empty()) throw bad_expected("'expected' is an empty list");
  std::vector<std::string> texts;
  for (const Json& item : value) {
    if (!item.is_string()) throw bad_expected(fmt::format("'expected' has {} in place of a text", item.type_name()));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

bool is_one_of(std::string_view text, const std::vector<std::string>& expected) {
  return std::ranges::any_of(expected, [&](const std::string& one) { return trimmed(one) == trimmed(text); });
}

}  // namespace

Scorer::Scorer(const ScoreRule& rule) : score_(rule.score) {
  if (score_ == AnswerScore::kRegex) pattern_.emplace(rule.pattern);
  if (score_ == AnswerScore::kCommand) judge_.emplace(rule.command, rule.command_timeout);
}

bool Scorer::needs_expected() const {
  if (score_ == AnswerScore::kRegex) return pattern_->num_groups() > 0;
  return score_ != AnswerScore::kCommand;
}

void Scorer::check(const Json& row) const {
  if (score_ == AnswerScore::kRegex && !needs_expected() && row.contains("expected"))
    counted_warning("rows whose 'expected' is not compared",
                    "the pattern has no group, so an answer passes if the pattern is found in it, and 'expected' is "
                    "not compared; put parentheses around what must equal it");
  if (!needs_expected()) return;
  const std::vector<std::string> expected = expected_of(row);
  if (score_ == AnswerScore::kContains && std::ranges::count(expected, "") > 0)
    throw bad_expected("'expected' is an empty text, which every answer contains");
}

bool Scorer::passes(const Json& row, const std::string& answer) const {
  switch (score_) {
    case AnswerScore::kExact:
      return is_one_of(answer, expected_of(row));
    case AnswerScore::kContains:
      return std::ranges::any_of(expected_of(row),
                                 [&](const std::string& one) { return answer.find(one) != std::string::npos; });
    case AnswerScore::kRegex:
      return matches(row, answer);
    case AnswerScore::kCommand:
      break;
  }
  Json judged = row;
  judged["answer"] = answer;
  return judge_->accepts(json_line(judged) + "\n");
}

// A search that takes too long depends on the answer, so it does not end the run.
bool Scorer::matches(const Json& row, const std::string& answer) const {
  try {
    if (pattern_->num_groups() == 0) return pattern_->found_in(answer);
    const std::optional<std::string> found = pattern_->first_group_in(answer);
    return found && is_one_of(*found, expected_of(row));
  } catch (const Error& error) {
    counted_warning("searches in answers given up", error.message() + "; the answer has not passed");
    return false;
  }
}

}  // namespace chassis
