// The evaluation sets of [[eval.generate]]: the model answers prompts, and the answers are scored. Changes nothing that
// training depends on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // `is_over`, if given, tells rank 0 whether the run is to stop.
  explicit GenerationSets(Session& session, std::function<bool()> is_over = {});

  size_t size() const { return sets_.size(); }
  // [step][all-ranks] All ranks compute the same answers, and rank 0 scores them. The counts are the same on all ranks;
  // only rank 0 gets the answers. Returns nothing if the run is to stop before the end.
  std::optional<ScoreRecord> evaluate(size_t index);
  const std::string& name(size_t index) const { return sets_.at(index).name; }

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
  // Nothing if the run is to stop; empty on the other ranks.
  std::optional<std::vector<bool>> score(const Set& set, const std::vector<Answer>& answers);
  bool is_over_here() const { return is_over_ && is_over_(); }
  // [all-ranks] Asks rank 0 now and then.
  bool gives_up();

  Session& session_;
  std::function<bool()> is_over_;
  uint64_t num_asked_ = 0;
  std::optional<Answerer> answerer_;  // unset: there are no sets
  std::vector<Set> sets_;
};

// The files of all sets.
std::vector<std::string> generation_source_files(const Settings& settings);

}  // namespace chassis
