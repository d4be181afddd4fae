// The evaluation sets of [[eval.generate]]: the model answers prompts, and the answers are scored. Changes nothing that
// training depends on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/generate/answer.hpp"
#include "host/generate/prompts_file.hpp"
#include "host/generate/scorer.hpp"
#include "host/session/session.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

class GenerationSets {
 public:
  // [all-ranks] Reads the rows of all sets and encodes their prompts. Throws a config error at the row or key that
  // cannot be used: a file without rows, a row without "expected", a prompt that is too long for the model, a judge
  // that does not exist; and if the ranks read different rows.
  explicit GenerationSets(Session& session);

  size_t size() const { return sets_.size(); }
  // [step][all-ranks] All ranks compute the same answers, and rank 0 scores them. The counts are the same on all ranks;
  // only rank 0 gets the answers.
  ScoreRecord evaluate(size_t index);

 private:
  struct Set {
    std::string name;
    Scorer scorer;
    GenerateOptions options;
    std::vector<PromptRow> rows;
    std::vector<std::vector<int32_t>> ids;
  };

  Set open(const Settings::GenerationSet& settings);
  std::vector<Answer> answers_to(const Set& set);
  std::vector<bool> score(const Set& set, const std::vector<Answer>& answers);

  Session& session_;
  std::optional<Answerer> answerer_;  // unset: there are no sets
  std::vector<Set> sets_;
};

// The files of all sets.
std::vector<std::string> generation_source_files(const Settings& settings);

}  // namespace chassis
