// Losses of pairs without a reference model: CPO (Xu et al. 2024), SimPO (Meng et al. 2024), AlphaPO (Gupta et al.
// 2025).
#include <algorithm>
#include <cmath>
#include <string>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/pair_metrics.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Term : size_t { kPreference, kCrossEntropy };
enum Metric : size_t { kNll = kNumPairMetrics };

class Cpo final : public Objective {
 public:
  static constexpr std::string_view kDoc = "CPO, SimPO and AlphaPO: pairs of answers; no reference";

  static const Options& options() {
    static const Options schema = {
        option("loss", "sigmoid")
            .choices({"sigmoid", "hinge", "ipo", "simpo", "alphapo"})
            .doc("sigmoid and hinge compare sums over the tokens of answers, the others means"),
        option("beta", 0.1).range(0, 1e6).doc("factor of the difference of answers; the authors of SimPO take 2 to 10"),
        option("label_smoothing", 0.0)
            .range(0, 0.5)
            .doc("share of the preferences that are assumed wrong; read by sigmoid, simpo, alphapo"),
        option("gamma", 0.5).range(0, 1e6).doc("margin of simpo and alphapo; some papers give gamma / beta"),
        option("alpha", 0.25).range(-10, 10).doc("shape of the rewards of alphapo; near 0 they are those of simpo"),
        option("sft_weight", -1.0)
            .range(-1, 1e6)
            .doc("weight of the cross entropy of the chosen answers, divided by their tokens; -1: 1, but 0 with simpo "
                 "and alphapo"),
    };
    return schema;
  }

  explicit Cpo(const Host& host) : Objective(host) {
    loss_ = option_value<std::string>(host, "loss");
    beta_ = option_value<double>(host, "beta");
    smoothing_ = option_value<double>(host, "label_smoothing");
    alpha_ = option_value<double>(host, "alpha");
    has_margin_ = loss_ == "simpo" || loss_ == "alphapo";
    gamma_ = has_margin_ ? option_value<double>(host, "gamma") : 0;
    sft_weight_ = option_value<double>(host, "sft_weight");
    if (beta_ <= 0) fail_option("beta", "must be above 0 (try 0.1, or 2 with \"simpo\")");
    if (sft_weight_ < 0 && sft_weight_ != -1) fail_option("sft_weight", "must be -1, 0 or above 0");
    if (sft_weight_ == -1) sft_weight_ = has_margin_ ? 0 : 1;
    if (!has_margin_)
      refuse_if_set(options(), "gamma", "with ", shown("loss"), ", only with \"simpo\" and \"alphapo\"");
    if (loss_ == "hinge" || loss_ == "ipo") refuse_if_set(options(), "label_smoothing", "with ", shown("loss"));
    if (loss_ != "alphapo") refuse_if_set(options(), "alpha", "with ", shown("loss"), ", only with \"alphapo\"");
    if (loss_ == "alphapo" && alpha_ == 0)
      fail_option("alpha", "makes ", shown("loss"), " the same as \"simpo\" (try objective.alpha = 0.25)");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.terms = {{loss_, CHASSIS_COUNT_UNITS}};
    d.metrics = pair_metrics();
    if (sft_weight_ == 0) return d;
    d.terms.push_back({"sft", CHASSIS_COUNT_CHOSEN_TOKENS});
    d.metrics.push_back({"nll_loss", CHASSIS_BETTER_LOWER});
    return d;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_pair([&](size_t w, size_t l) {
      const Reward chosen = reward(batch, w), rejected = reward(batch, l);
      const Loss loss = loss_of(chosen.value - rejected.value);
      out.add_term(kPreference, loss.value);
      out.add_grad_logp(kPreference, w, loss.slope * chosen.slope);
      out.add_grad_logp(kPreference, l, -loss.slope * rejected.slope);
      if (sft_weight_ > 0) {
        out.add_term(kCrossEntropy, -sft_weight_ * batch.logp()[w]);
        out.add_grad_logp(kCrossEntropy, w, -sft_weight_);
        out.add_metric(kNll, -batch.logp()[w], batch.length()[w]);
      }
      add_pair_metrics(out, {beta_ * chosen.value, beta_ * rejected.value, chosen.logp, rejected.logp});
    });
  }

 private:
  struct Reward {
    double logp;          // sum or mean, as the loss compares it
    double value, slope;  // the reward ÷ β, and its derivative with respect to the sum
  };
  struct Loss {
    double value, slope;
  };

  // AlphaPO's reward is (1 - p^(-α)) / α, which tends to log p; exponents end at 80.
  Reward reward(const ObjectiveBatch& batch, size_t i) const {
    const double divisor = has_margin_ || loss_ == "ipo" ? batch.length()[i] : 1;
    const double logp = batch.logp()[i] / divisor;
    if (loss_ != "alphapo") return {logp, logp, 1 / divisor};
    return {logp, -capped_expm1(-alpha_ * logp) / alpha_, capped_exp_slope(-alpha_ * logp) / divisor};
  }

  Loss loss_of(double difference) const {
    if (loss_ == "ipo") {
      const double error = difference - 1 / (2 * beta_);
      return {error * error, 2 * error};
    }
    const double x = beta_ * difference - gamma_;
    if (loss_ == "hinge") return {std::max(0.0, 1 - x), x < 1 ? -beta_ : 0};
    return {smoothed_logistic(x, smoothing_), beta_ * smoothed_logistic_slope(x, smoothing_)};
  }

  std::string loss_;
  double beta_ = 0, smoothing_ = 0, gamma_ = 0, alpha_ = 0, sft_weight_ = 0;
  bool has_margin_ = false;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Cpo)
