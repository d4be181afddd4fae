// The pass that ends a recorded model in what a run minimises or reads: the loss of tokens, their log-probabilities, or
// scores. It runs right after the record pass, so that adapters and layouts see its ops and its head.
#pragma once

#include <cstdint>
#include <string>

#include "host/compile/pass_report.hpp"
#include "host/graph/program.hpp"

namespace chassis {

// Names of outputs of a program's last block. Models give the first three; the pass replaces them by some of the others.
inline constexpr char kHiddenOutput[] = "hidden";     // [B, T, H], what the head reads
inline constexpr char kLogitsOutput[] = "logits";     // [B, T, vocab]
inline constexpr char kAuxLossOutput[] = "aux_loss";  // [], a sum over tokens, added to their cross entropy
inline constexpr char kLossOutput[] = "loss";         // [] f32, the sum over the labels that are not ignored
inline constexpr char kTokenLogpsOutput[] = "token_logps";  // [B, T] f32: of the labels, 0 where they are ignored
inline constexpr char kScoresOutput[] = "scores";           // [B, T, labels] f32; a model may give them too

// The name of the head of scores in files: that of transformers' ...ForSequenceClassification.
inline constexpr char kScoreWeight[] = "score.weight";

enum class ObjectiveOutput { kLoss, kTokenLogps, kScores };

struct ObjectiveRequest {
  ObjectiveOutput output = ObjectiveOutput::kLoss;
  int64_t num_scores = 0;  // with kScores
};

// Throws a config error if the model cannot give it. A program without chains, or with a loss of its own, such as a test's,
// stays as it is.
PassReport add_objective(Program& program, const ObjectiveRequest& request);

// The scores of a position that the program gives; 0 if it gives none.
int64_t num_scores(const Program& program);

}  // namespace chassis
