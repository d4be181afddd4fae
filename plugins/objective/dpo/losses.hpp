// The losses of pairs, as functions of the scores of both answers. A score is the log-ratio of policy and reference, or
// what a divergence makes of it.
#pragma once

#include <span>
#include <string_view>

namespace dpo {

struct Coefficients {
  double beta = 0;
  double smoothing = 0;
  double tau = 0;         // of discopop
  bool per_token = true;  // ipo: scores are divided by the numbers of tokens
};

struct PairScores {
  double chosen = 0, rejected = 0;
  double chosen_length = 0, rejected_length = 0;  // in tokens
};

// A loss, and its derivatives with respect to both scores.
struct PairLoss {
  double value = 0, chosen = 0, rejected = 0;
};

enum class Form {
  kPair,         // `of` gives the loss of a pair
  kTokens,       // the cross entropy of chosen answers
  kAot,          // pairs are matched with those of the reference, by rank
  kAotUnpaired,  // chosen answers are matched with rejected ones, by rank
};

struct LossSpec {
  std::string_view name;
  Form form;
  bool has_divergence;  // reads scores of any divergence, not only log-ratios
  bool has_smoothing;
  PairLoss (*of)(const PairScores&, const Coefficients&);  // nullptr unless kPair
};

std::span<const LossSpec> all_losses();
const LossSpec& find_loss(std::string_view name);

enum class Divergence { kReverseKl, kForwardKl, kJs, kAlpha };

struct Score {
  double value = 0, slope = 0;  // the derivative with respect to the log-ratio
};
// f'(e^log_ratio) of an f-divergence (Wang et al. 2023, "Beyond Reverse KL"). Exponents end at 80.
Score score_of(Divergence divergence, double alpha, double log_ratio);

}  // namespace dpo
