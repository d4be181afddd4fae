// Decides whether the answer to a row of [[eval.generate]] has passed.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "host/base/json.hpp"
#include "host/base/pattern.hpp"
#include "host/config/choices.hpp"
#include "host/generate/judge.hpp"

namespace chassis {

// The keys of a set that say when an answer passes.
struct ScoreRule {
  AnswerScore score = AnswerScore::kExact;
  std::string pattern = {};               // kRegex
  std::vector<std::string> command = {};  // kCommand
  std::chrono::milliseconds command_timeout{30000};
};

class Scorer {
 public:
  // Throws a config error if the pattern is not one, or if there is no such program.
  explicit Scorer(const ScoreRule& rule);

  // Throws a config error if the row lacks a usable "expected", and the score needs it.
  void check(const Json& row) const;
  // `row` was checked. May run a program, and then blocks; throws a config error if that cannot be started.
  bool passes(const Json& row, const std::string& answer) const;

 private:
  bool needs_expected() const;
  bool matches(const Json& row, const std::string& answer) const;

  AnswerScore score_;
  std::optional<Pattern> pattern_;
  std::optional<Judge> judge_;
};

}  // namespace chassis
