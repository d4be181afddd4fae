// Each function names the paper of its formula.
#include "losses.hpp"

#include <cmath>

#include "chassis/guard.hpp"
#include "chassis/log_sigmoid.hpp"

namespace dpo {

using namespace chassis;

namespace {

// From the derivative with respect to x = β (chosen - rejected).
PairLoss of_difference(double value, double slope, double beta) { return {value, beta * slope, -beta * slope}; }

double scaled_difference(const PairScores& p, const Coefficients& c) { return c.beta * (p.chosen - p.rejected); }

// DPO (Rafailov et al. 2023); with smoothing, conservative DPO (Mitchell 2023).
PairLoss logistic(const PairScores& p, const Coefficients& c) {
  const double x = scaled_difference(p, c);
  return of_difference(smoothed_logistic(x, c.smoothing), smoothed_logistic_slope(x, c.smoothing), c.beta);
}

// SLiC (Zhao et al. 2023), RSO (Liu et al. 2023).
PairLoss hinge(const PairScores& p, const Coefficients& c) {
  const double x = scaled_difference(p, c);
  return of_difference(std::max(0.0, 1 - x), x < 1 ? -1 : 0, c.beta);
}

// IPO (Azar et al. 2023, equation 17), on means over tokens unless per_token is off.
PairLoss ipo(const PairScores& p, const Coefficients& c) {
  const double chosen = c.per_token ? p.chosen_length : 1, rejected = c.per_token ? p.rejected_length : 1;
  const double error = p.chosen / chosen - p.rejected / rejected - 1 / (2 * c.beta);
  return {error * error, 2 * error / chosen, -2 * error / rejected};
}

// EXO (Ji et al. 2024, equation 16): KL of (q, 1 - q) and (1 - ε, ε).
PairLoss exo_pair(const PairScores& p, const Coefficients& c) {
  const double x = scaled_difference(p, c), q = sigmoid(x), other = sigmoid(-x);
  const double log_wanted = std::log1p(-c.smoothing), log_other_wanted = std::log(c.smoothing);
  const double value = q * (log_sigmoid(x) - log_wanted) + other * (log_sigmoid(-x) - log_other_wanted);
  return of_difference(value, q * other * (x - log_wanted + log_other_wanted), c.beta);
}

// NCA (Chen et al. 2024).
PairLoss nca_pair(const PairScores& p, const Coefficients& c) {
  const double w = c.beta * p.chosen, l = c.beta * p.rejected;
  return {softplus(-w) + 0.5 * softplus(w) + 0.5 * softplus(l), c.beta * (0.5 * sigmoid(w) - sigmoid(-w)),
          c.beta * 0.5 * sigmoid(l)};
}

// Robust DPO (Chowdhury et al. 2024): unbiased if a share ε of the preferences is flipped.
PairLoss robust(const PairScores& p, const Coefficients& c) {
  const double x = scaled_difference(p, c), scale = 1 / (1 - 2 * c.smoothing);
  return of_difference(scale * ((1 - c.smoothing) * softplus(-x) - c.smoothing * softplus(x)),
                       scale * (-(1 - c.smoothing) * sigmoid(-x) - c.smoothing * sigmoid(x)), c.beta);
}

// BCO (Jung et al. 2024) without its moving average.
PairLoss bco_pair(const PairScores& p, const Coefficients& c) {
  const double w = c.beta * p.chosen, l = c.beta * p.rejected;
  return {softplus(-w) + softplus(l), -c.beta * sigmoid(-w), c.beta * sigmoid(l)};
}

// SPPO (Wu et al. 2024, equation 4.7) with hard probabilities.
PairLoss sppo_hard(const PairScores& p, const Coefficients& c) {
  const double w = p.chosen - 0.5 / c.beta, l = p.rejected + 0.5 / c.beta;
  return {w * w + l * l, 2 * w, 2 * l};
}

// APO (D'Oosterlinck et al. 2024, equations 7 and 8).
PairLoss apo_zero(const PairScores& p, const Coefficients& c) {
  const double w = c.beta * p.chosen, l = c.beta * p.rejected;
  return {sigmoid(-w) + sigmoid(l), -c.beta * sigmoid_slope(w), c.beta * sigmoid_slope(l)};
}
PairLoss apo_down(const PairScores& p, const Coefficients& c) {
  const double w = c.beta * p.chosen, x = scaled_difference(p, c);
  const double slope = c.beta * sigmoid_slope(x);
  return {sigmoid(w) + sigmoid(-x), c.beta * sigmoid_slope(w) - slope, slope};
}

// DiscoPOP (Lu et al. 2024, equation 5): m = σ(x/τ) moves from the logistic to the exponential loss. m e^(-x) is one
// exponential, which stays finite for τ ≤ 1.
PairLoss discopop(const PairScores& p, const Coefficients& c) {
  const double x = scaled_difference(p, c), m = sigmoid(x / c.tau), rest = sigmoid(-x / c.tau);
  const double exponential = std::exp(log_sigmoid(x / c.tau) - x);
  const double slope = -m * rest / c.tau * softplus(-x) - rest * sigmoid(-x) + exponential * (rest / c.tau - 1);
  return of_difference(rest * softplus(-x) + exponential, slope, c.beta);
}

// DPO on means over tokens.
PairLoss sigmoid_norm(const PairScores& p, const Coefficients& c) {
  const double x = c.beta * (p.chosen / p.chosen_length - p.rejected / p.rejected_length);
  const double slope = -c.beta * sigmoid(-x);
  return {softplus(-x), slope / p.chosen_length, -slope / p.rejected_length};
}

constexpr LossSpec kLosses[] = {
    {"sigmoid", Form::kPair, true, true, logistic},
    {"hinge", Form::kPair, true, false, hinge},
    {"ipo", Form::kPair, true, false, ipo},
    {"exo_pair", Form::kPair, true, true, exo_pair},
    {"nca_pair", Form::kPair, false, false, nca_pair},
    {"robust", Form::kPair, true, true, robust},
    {"bco_pair", Form::kPair, false, false, bco_pair},
    {"sppo_hard", Form::kPair, false, false, sppo_hard},
    {"apo_zero", Form::kPair, false, false, apo_zero},
    {"apo_down", Form::kPair, false, false, apo_down},
    {"aot", Form::kAot, false, true, nullptr},
    {"aot_unpaired", Form::kAotUnpaired, false, true, nullptr},
    {"discopop", Form::kPair, true, false, discopop},
    {"sigmoid_norm", Form::kPair, true, false, sigmoid_norm},
    {"sft", Form::kTokens, true, false, nullptr},
};

}  // namespace

std::span<const LossSpec> all_losses() { return kLosses; }

const LossSpec& find_loss(std::string_view name) {
  for (const LossSpec& loss : kLosses)
    if (loss.name == name) return loss;
  throw Failure(CHASSIS_INTERNAL, "no loss '", name, "'");
}

Score score_of(Divergence divergence, double alpha, double log_ratio) {
  switch (divergence) {
    case Divergence::kReverseKl:
      return {log_ratio, 1};
    case Divergence::kForwardKl:  // 1 - 1/t
      return {-capped_expm1(-log_ratio), capped_exp_slope(-log_ratio)};
    case Divergence::kJs:  // log(2t / (t + 1))
      return {std::log(2.0) + log_sigmoid(log_ratio), sigmoid(-log_ratio)};
    case Divergence::kAlpha:  // (t^(α-1) - 1) / (α - 1), which tends to log t
      if (std::abs(alpha - 1) < 1e-6) return {log_ratio, 1};
      return {capped_expm1((alpha - 1) * log_ratio) / (alpha - 1), capped_exp_slope((alpha - 1) * log_ratio)};
  }
  throw Failure(CHASSIS_INTERNAL, "divergence ", static_cast<int>(divergence));
}

}  // namespace dpo
