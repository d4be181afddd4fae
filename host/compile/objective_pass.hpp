// The pass that ends a recorded model in what a run minimises or reads: the loss of tokens, their log-probabilities, or
// scores. It runs right after the record pass, so that adapters and layouts see its ops and its head.
#pragma once

#include <cstdint>
#include <string>

#include "host/graph/output_names.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// The name of the head of scores in files: that of transformers' ...ForSequenceClassification.
inline constexpr char kScoreWeight[] = "score.weight";

enum class ObjectiveOutput { kLoss, kTokenLogps, kTopLogps, kScores };

struct ObjectiveRequest {
  ObjectiveOutput output = ObjectiveOutput::kLoss;
  int64_t num_scores = 0;  // with kScores
  // With kTopLogps, which also gives those of the labels.
  int64_t top_k = 0;
  double temperature = 0;
};

// Throws a config error if the model cannot give it. A program without chains, or with a loss of its own, such as a
// test's, stays as it is.
std::string add_objective(Program& program, const ObjectiveRequest& request);

// The scores of a position that the program gives; 0 if it gives none.
int64_t num_scores(const Program& program);

}  // namespace chassis
