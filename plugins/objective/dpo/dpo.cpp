// Direct preference optimisation: losses of the log-ratios of policy and reference on pairs of answers.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/pair_metrics.hpp"
#include "chassis/plugin.hpp"
#include "losses.hpp"

namespace {

using namespace chassis;
using namespace dpo;

enum Metric : size_t { kNll = kNumPairMetrics };

class Dpo final : public Objective {
 public:
  static constexpr std::string_view kDoc = "DPO and its relatives: pairs of answers, compared with a reference model";

  static const Options& options() {
    static const Options schema = {
        option("loss", std::vector<std::string>{"sigmoid"})
            .choices({"sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero",
                      "apo_down", "aot", "aot_unpaired", "discopop", "sigmoid_norm", "sft"})
            .doc("one or several losses, which are added"),
        option("loss_weights", std::vector<double>{}).range(0, 1e6).doc("a weight for each loss; empty: 1 for all"),
        option("beta", 0.1).range(0, 1e6).doc("how strongly the policy stays close to the reference; more is closer"),
        option("label_smoothing", 0.0)
            .range(0, 0.5)
            .doc("share of the preferences that are assumed wrong; read by sigmoid, robust, exo_pair, aot, "
                 "aot_unpaired"),
        option("f_divergence", "reverse_kl")
            .choices({"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"})
            .doc("divergence from the reference; reverse_kl is that of the DPO paper"),
        option("alpha", 0.5).range(-10, 10).doc("of alpha_divergence; 1 is reverse_kl, 0 is forward_kl"),
        option("discopop_tau", 0.05).range(1e-6, 1).doc("temperature of discopop"),
        option("ld_alpha", 1.0)
            .range(0, 1)
            .doc("weight of the tokens of the longer answer that are beyond the length of the shorter (LD-DPO)"),
        option("length_normalize", "mean")
            .choices({"mean", "sum"})
            .doc("ipo compares means over the tokens of answers, or sums"),
        option("sft_weight", 0.0)
            .range(0, 1e6)
            .doc("weight of the cross entropy of the chosen answers, divided by their tokens"),
    };
    return schema;
  }

  explicit Dpo(const Host& host) : Objective(host) {
    coefficients_.beta = option_value<double>(host, "beta");
    coefficients_.smoothing = option_value<double>(host, "label_smoothing");
    coefficients_.tau = option_value<double>(host, "discopop_tau");
    coefficients_.per_token = option_value<std::string>(host, "length_normalize") == "mean";
    alpha_ = option_value<double>(host, "alpha");
    ld_alpha_ = option_value<double>(host, "ld_alpha");
    if (coefficients_.beta <= 0) fail_option("beta", "must be above 0 (try 0.1)");
    read_losses();
    if (only_tokens())
      fail_option("loss", "compares no answers; set train.task = \"sft\", or add a loss of preferences");
    read_divergence();
    check_smoothing();
    if (!has("discopop")) refuse_if_set(options(), "discopop_tau", "with ", shown("loss"), ", only with \"discopop\"");
    if (!has("ipo")) refuse_if_set(options(), "length_normalize", "with ", shown("loss"), ", only with \"ipo\"");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.needs = CHASSIS_OBJECTIVE_REFERENCE | (ld_alpha_ != 1 ? CHASSIS_OBJECTIVE_TOKENS : 0);
    for (const Term& term : terms_)
      d.terms.push_back({std::string(term.loss->name),
                         term.loss->form == Form::kTokens ? CHASSIS_COUNT_CHOSEN_TOKENS : CHASSIS_COUNT_UNITS});
    d.metrics = pair_metrics();
    if (has("sft")) d.metrics.push_back({"nll_loss", CHASSIS_BETTER_LOWER});
    if (has("aot") || has("aot_unpaired")) {
      d.needs |= CHASSIS_OBJECTIVE_GLOBAL;
      d.state_per_sequence = kNumStates;
    }
    return d;
  }

  // Matches by rank over the whole global batch (Melnyk et al. 2024, "Distributional preference alignment via optimal
  // transport"). Ties are in any order, for they are equal.
  void prepare_step(const ObjectiveBatch& global, const ObjectiveState& out) const override {
    using Ranked = std::vector<std::pair<double, size_t>>;  // value, sequence
    Ranked pairs, reference_pairs, chosen, rejected;
    global.for_each_pair([&](size_t w, size_t l) {
      const Answers a = answers(global, w, l);
      pairs.push_back({a.chosen.logp - a.rejected.logp, w});
      reference_pairs.push_back({a.chosen.reference - a.rejected.reference, w});
      chosen.push_back({a.chosen.log_ratio(), w});
      rejected.push_back({a.rejected.log_ratio(), l});
    });
    for (Ranked* list : {&pairs, &reference_pairs, &chosen, &rejected}) std::sort(list->begin(), list->end());
    for (size_t rank = 0; rank < pairs.size(); ++rank) {
      out.sequence(pairs[rank].second)[kMatchedPair] = reference_pairs[rank].first;
      out.sequence(chosen[rank].second)[kMatched] = rejected[rank].first;
      out.sequence(rejected[rank].second)[kMatched] = chosen[rank].first;
      out.sequence(rejected[rank].second)[kPrepared] = rejected[rank].first;
    }
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_pair([&](size_t w, size_t l) {
      const Answers a = answers(batch, w, l);
      for (size_t term = 0; term < terms_.size(); ++term) add_term(batch, a, term, out);
      add_metrics(batch, a, out);
    });
  }

 private:
  // Values of a sequence from prepare_step: the one that its own is matched with by aot (that of a pair is at the
  // chosen answer), the same by aot_unpaired, and its own of aot_unpaired.
  enum State : size_t { kMatchedPair, kMatched, kPrepared, kNumStates };

  struct Term {
    const LossSpec* loss;
    double weight;
  };
  struct Answer {
    size_t sequence = 0;
    double length = 0;
    double logp = 0, reference = 0;  // sums over the tokens, weighted by ld_alpha
    size_t tail = 0;                 // first token whose weight is ld_alpha
    Score score;

    double log_ratio() const { return logp - reference; }
  };
  struct Answers {
    Answer chosen, rejected;
  };

  bool has(std::string_view name) const {
    return std::any_of(terms_.begin(), terms_.end(), [&](const Term& term) { return term.loss->name == name; });
  }
  bool only_tokens() const {
    return std::all_of(terms_.begin(), terms_.end(), [](const Term& term) { return term.loss->form == Form::kTokens; });
  }

  void read_losses() {
    const auto names = option_value<std::vector<std::string>>(host(), "loss");
    const auto weights = option_value<std::vector<double>>(host(), "loss_weights");
    const auto sft_weight = option_value<double>(host(), "sft_weight");
    if (names.empty()) fail_option("loss", "names no loss (try [\"sigmoid\"])");
    if (!weights.empty() && weights.size() != names.size())
      fail_option("loss_weights", "has ", weights.size(), " weights, but ", shown("loss"), " has ", names.size(),
                  names.size() == 1 ? " loss" : " losses");
    for (size_t i = 0; i < names.size(); ++i) {
      if (has(names[i])) fail_option("loss", "has \"", names[i], "\" twice; set its weight in objective.loss_weights");
      if (!weights.empty() && weights[i] == 0)
        fail_option("loss_weights", "switches off \"", names[i], "\"; remove it from ", shown("loss"));
      terms_.push_back({&find_loss(names[i]), weights.empty() ? 1 : weights[i]});
    }
    if (sft_weight == 0) return;
    if (has("sft"))
      fail_option("sft_weight", "adds the loss \"sft\", which ", shown("loss"),
                  " has already; set its weight in objective.loss_weights");
    terms_.push_back({&find_loss("sft"), sft_weight});
  }

  void read_divergence() {
    const std::string name = option_value<std::string>(host(), "f_divergence");
    divergence_ = name == "forward_kl"         ? Divergence::kForwardKl
                  : name == "js_divergence"    ? Divergence::kJs
                  : name == "alpha_divergence" ? Divergence::kAlpha
                                               : Divergence::kReverseKl;
    if (divergence_ != Divergence::kAlpha) refuse_if_set(options(), "alpha", "with ", shown("f_divergence"));
    if (divergence_ == Divergence::kReverseKl) return;
    for (const Term& term : terms_)
      if (!term.loss->has_divergence)
        fail_option("f_divergence", "has no effect on \"", term.loss->name, "\" of ", shown("loss"),
                    ", which is defined for \"reverse_kl\" alone");
  }

  void check_smoothing() {
    const auto smooths = [](const Term& term) { return term.loss->has_smoothing; };
    if (std::none_of(terms_.begin(), terms_.end(), smooths))
      refuse_if_set(options(), "label_smoothing", "with ", shown("loss"),
                    ", only with \"sigmoid\", \"robust\", \"exo_pair\", \"aot\" and \"aot_unpaired\"");
    if (has("robust") && coefficients_.smoothing >= 0.5)
      fail_option("label_smoothing", "must be below 0.5 with \"robust\" in ", shown("loss"));
    if (has("exo_pair") && coefficients_.smoothing == 0)
      fail_option("label_smoothing", "must be above 0 with \"exo_pair\" in ", shown("loss"), " (try 1e-3)");
  }

  Answer answer(const ObjectiveBatch& batch, size_t i, size_t shorter) const {
    Answer a{i, batch.length()[i], batch.logp()[i], batch.reference_logp()[i], 0, {}};
    if (ld_alpha_ != 1) {
      const auto own = batch.token_logp(i), reference = batch.reference_token_logp(i);
      a.tail = batch.first_token(i) + shorter;
      for (size_t t = shorter; t < own.size(); ++t) {
        a.logp -= (1 - ld_alpha_) * own[t];
        a.reference -= (1 - ld_alpha_) * reference[t];
      }
    }
    a.score = score_of(divergence_, alpha_, a.log_ratio());
    return a;
  }
  Answers answers(const ObjectiveBatch& batch, size_t w, size_t l) const {
    const size_t shorter = ld_alpha_ == 1 ? 0 : std::min(batch.token_logp(w).size(), batch.token_logp(l).size());
    return {answer(batch, w, shorter), answer(batch, l, shorter)};
  }

  // The gradient of an answer's log-probability; its tail has the weight ld_alpha.
  void add_gradient(const ObjectiveBatch& batch, const Answer& a, size_t term, double derivative,
                    ObjectiveResult& out) const {
    out.add_grad_logp(term, a.sequence, derivative);
    if (ld_alpha_ == 1) return;
    for (size_t t = a.tail; t < batch.first_token(a.sequence + 1); ++t)
      out.add_grad_token_logp(term, t, -(1 - ld_alpha_) * derivative);
  }

  void add_term(const ObjectiveBatch& batch, const Answers& a, size_t term, ObjectiveResult& out) const {
    const auto [loss, weight] = terms_[term];
    if (loss->form == Form::kTokens) {
      out.add_term(term, -weight * batch.logp()[a.chosen.sequence]);
      out.add_grad_logp(term, a.chosen.sequence, -weight);
      return;
    }
    PairLoss result;
    if (loss->form == Form::kPair) {
      result =
          loss->of({a.chosen.score.value, a.rejected.score.value, a.chosen.length, a.rejected.length}, coefficients_);
      result.chosen *= a.chosen.score.slope, result.rejected *= a.rejected.score.slope;
    } else {
      result = loss->form == Form::kAot ? aot(batch, a) : aot_unpaired(batch, a);
    }
    out.add_term(term, weight * result.value);
    add_gradient(batch, a.chosen, term, weight * result.chosen, out);
    add_gradient(batch, a.rejected, term, weight * result.rejected, out);
  }

  double logistic(double difference) const {
    return smoothed_logistic(coefficients_.beta * difference, coefficients_.smoothing);
  }
  double slope(double difference) const {
    return coefficients_.beta * smoothed_logistic_slope(coefficients_.beta * difference, coefficients_.smoothing);
  }
  PairLoss aot(const ObjectiveBatch& batch, const Answers& a) const {
    const double difference = a.chosen.logp - a.rejected.logp - batch.sequence_state(a.chosen.sequence)[kMatchedPair];
    return {logistic(difference), slope(difference), -slope(difference)};
  }
  // A match of two answers counts at the chosen one. The rejected one, which may be in another batch, adds only what
  // the loss of its match has changed since prepare_step, so values are counted once and gradients are complete.
  PairLoss aot_unpaired(const ObjectiveBatch& batch, const Answers& a) const {
    const auto chosen = batch.sequence_state(a.chosen.sequence), rejected = batch.sequence_state(a.rejected.sequence);
    const double of_chosen = a.chosen.log_ratio() - chosen[kMatched];
    const double of_rejected = rejected[kMatched] - a.rejected.log_ratio();
    const double change = logistic(of_rejected) - logistic(rejected[kMatched] - rejected[kPrepared]);
    return {logistic(of_chosen) + change, slope(of_chosen), -slope(of_rejected)};
  }

  void add_metrics(const ObjectiveBatch& batch, const Answers& a, ObjectiveResult& out) const {
    const double chosen = coefficients_.beta * a.chosen.log_ratio();
    const double rejected = coefficients_.beta * a.rejected.log_ratio();
    add_pair_metrics(out, {chosen, rejected, a.chosen.logp, a.rejected.logp});
    if (has("sft")) out.add_metric(kNll, -batch.logp()[a.chosen.sequence], a.chosen.length);
  }

  Coefficients coefficients_;
  std::vector<Term> terms_;
  Divergence divergence_ = Divergence::kReverseKl;
  double alpha_ = 0, ld_alpha_ = 0;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Dpo)
