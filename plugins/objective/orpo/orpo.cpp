// ORPO (Hong et al. 2024): the cross entropy of chosen answers and the odds of chosen against rejected ones, without a
// reference model. The cross entropy is that of the answer's tokens alone; some implementations count the prompt's too.
#include <algorithm>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/pair_metrics.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Term : size_t { kOdds, kCrossEntropy };
enum Metric : size_t { kNll = kNumPairMetrics, kLogOddsRatio, kLogOddsChosen };

class Orpo final : public Objective {
 public:
  static constexpr std::string_view kDoc = "ORPO: cross entropy of chosen answers and odds of pairs; no reference";

  static const Options& options() {
    static const Options schema = {
        option("beta", 0.1).range(0, 1e6).doc("weight of the odds ratio, which the paper calls lambda"),
        option("sft_weight", 1.0)
            .range(0, 1e6)
            .doc("weight of the cross entropy of the chosen answers, divided by their tokens"),
    };
    return schema;
  }

  explicit Orpo(const Host& host)
      : Objective(host),
        beta_(option_value<double>(host, "beta")),
        sft_weight_(option_value<double>(host, "sft_weight")) {
    if (beta_ <= 0) fail_option("beta", "must be above 0 (try 0.1)");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.terms = {{"odds_ratio", CHASSIS_COUNT_UNITS}};
    if (sft_weight_ > 0) d.terms.push_back({"sft", CHASSIS_COUNT_CHOSEN_TOKENS});
    d.metrics = pair_metrics();
    d.metrics.push_back({"nll_loss", CHASSIS_BETTER_LOWER});
    d.metrics.push_back({"log_odds_ratio", CHASSIS_BETTER_HIGHER});
    d.metrics.push_back({"log_odds_chosen", CHASSIS_BETTER_HIGHER});
    return d;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_pair([&](size_t w, size_t l) {
      const Odds chosen(batch.logp()[w] / batch.length()[w]), rejected(batch.logp()[l] / batch.length()[l]);
      const double log_ratio = chosen.log_odds - rejected.log_odds, derivative = -beta_ * sigmoid(-log_ratio);
      out.add_term(kOdds, beta_ * softplus(-log_ratio));
      out.add_grad_logp(kOdds, w, derivative * chosen.slope / batch.length()[w]);
      out.add_grad_logp(kOdds, l, -derivative * rejected.slope / batch.length()[l]);
      if (sft_weight_ > 0) {
        out.add_term(kCrossEntropy, -sft_weight_ * batch.logp()[w]);
        out.add_grad_logp(kCrossEntropy, w, -sft_weight_);
      }
      add_pair_metrics(out, {beta_ * chosen.logp, beta_ * rejected.logp, chosen.logp, rejected.logp});
      out.add_metric(kNll, -batch.logp()[w], batch.length()[w]);
      out.add_metric(kLogOddsRatio, log_sigmoid(log_ratio));
      out.add_metric(kLogOddsChosen, log_ratio);
    });
  }

 private:
  // log(p / (1 - p)) of the mean log-probability of a token, and its derivative 1 / (1 - p). Both are infinite at p
  // = 1. Nearer to it than fp32 can express, they stay as they are, and the derivative is 0.
  struct Odds {
    static constexpr double kNearest = -0x1p-24;
    explicit Odds(double mean) : logp(mean) {
      const double bounded = std::min(mean, kNearest);
      log_odds = bounded - log1mexp(bounded);
      slope = mean > kNearest ? 0 : -1 / std::expm1(bounded);
    }
    double logp, log_odds, slope;
  };

  double beta_, sft_weight_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Orpo)
