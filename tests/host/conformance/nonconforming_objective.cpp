// An objective for every kind of data, with one fault, which the environment variable NONCONFORMING selects and
// `plugins check` must find. Correct if the variable is not set.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/objective.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

class NonconformingObjective final : public Objective {
 public:
  static constexpr std::string_view kDoc = "test: losses of every kind of data, with a fault";
  static const Options& options() {
    static const Options schema = {
        option("data", "pairs")
            .choices({"pairs", "labels", "rollouts", "weighted", "classes", "values"})
            .doc("the unit"),
        option("beta", 0.5).range(0.01, 10).doc("factor of rewards; not for classes and values"),
        option("loss", "logistic").choices({"logistic", "hinge"}).doc("of pairs"),
        option("margin", 1.0).range(0, 10).doc("of the hinge"),
    };
    return schema;
  }

  explicit NonconformingObjective(const Host& host)
      : Objective(host),
        data_(option_value<std::string>(host, "data")),
        beta_(option_value<double>(host, "beta")),
        margin_(option_value<double>(host, "margin")),
        hinge_(option_value<std::string>(host, "loss") == "hinge") {
    if (const char* fault = std::getenv("NONCONFORMING")) fault_ = fault;
    if (margin_ != 1 && !hinge_ && !has("ignores margin")) fail_invalid("margin is for the hinge");
    if (hinge_ && data_ != "pairs") fail_invalid("the hinge is for pairs");
    if (has("refuses as internal") && beta_ > 5) throw Failure(CHASSIS_INTERNAL, "beta is too large");
    if (data_ != "pairs" && has("pairs only")) fail_invalid("it is for pairs");
  }

  ObjectiveDescription describe() const override {
    static int num_calls = 0;
    ObjectiveDescription d;
    d.terms = {{"loss", CHASSIS_COUNT_UNITS}};
    d.metrics = {{"margin", CHASSIS_BETTER_LOWER}};
    if (has("describes anew")) d.metrics = {{"margin" + std::to_string(++num_calls), CHASSIS_BETTER_LOWER}};
    if (data_ == "pairs") {
      d.needs = CHASSIS_OBJECTIVE_REFERENCE;
      d.terms.push_back({"nll", CHASSIS_COUNT_CHOSEN_TOKENS});
    } else if (data_ == "labels") {
      d.units = CHASSIS_OBJECTIVE_LABELLED;
      d.needs = CHASSIS_OBJECTIVE_REFERENCE | CHASSIS_OBJECTIVE_MISMATCH;
      d.num_targets = d.state_size = d.state_per_sequence = 1;
    } else if (data_ == "rollouts" || data_ == "weighted") {
      d.units = CHASSIS_OBJECTIVE_ROLLOUTS;
      d.needs = CHASSIS_OBJECTIVE_OLD_LOGPS;
      if (data_ == "weighted" && !has("hides the stopped ratio")) d.needs = CHASSIS_OBJECTIVE_STOPPED_RATIO;
      d.num_targets = 1;
      d.terms[0].count = CHASSIS_COUNT_TOKENS;
    } else {
      d.values = CHASSIS_OBJECTIVE_SCORES;
      d.units = CHASSIS_OBJECTIVE_TEXTS;
      d.num_scores = data_ == "classes" ? 3 : 2;
      d.num_targets = data_ == "classes" ? 1 : 2;
      d.num_classes = data_ == "classes" ? 3 : 0;
      d.terms[0].count = CHASSIS_COUNT_TARGETS;
    }
    return d;
  }

  // The mean reward of mismatches, and a weight of each sequence by its share of desirable ones.
  void prepare_step(const ObjectiveBatch& global, const ObjectiveState& out) const override {
    static int num_calls = 0;
    double desirable = 0, answers = 0;
    for (size_t i = 0; i < global.num_sequences(); ++i) {
      if (global.role()[i] == CHASSIS_SEQUENCE_MISMATCH)
        out.values[0] += beta_ * (global.logp()[i] - global.reference_logp()[i]);
      else
        desirable += global.target(i)[0], ++answers;
    }
    out.values[0] = std::max(0.0, out.values[0] / answers);
    if (has("prepares by order")) out.values[0] += global.logp()[0];
    if (has("prepares anew")) out.values[0] += 1e-9 * ++num_calls;
    for (size_t i = 0; i < global.num_sequences(); ++i) out.sequence(i)[0] = 1 + desirable / answers;
    if (has("prepares NaN")) out.sequence(1)[0] = std::nan("");
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    static int num_calls = 0;
    static std::vector<std::string> kept;
    if (has("leaks")) kept.emplace_back(1 << 20, 'x');
    if (has("counts calls") && batch.num_sequences() > 0) out.add_term(0, 1e-6 * ++num_calls);
    if (has("depends on gradients") && out.has_gradients() && batch.num_sequences() > 0) out.add_term(0, 1);
    if (has("adds for nothing")) out.add_term(0, 1);
    if (data_ == "pairs") evaluate_pairs(batch, out);
    if (data_ == "labels") evaluate_labels(batch, out);
    if (data_ == "rollouts") evaluate_rollouts(batch, out);
    if (data_ == "weighted") evaluate_weighted(batch, out);
    if (data_ == "classes") evaluate_classes(batch, out);
    if (data_ == "values") evaluate_values(batch, out);
  }

 private:
  bool has(std::string_view fault) const { return fault_ == fault; }

  void add(ObjectiveResult& out, double loss) const {
    out.add_term(0, loss);
    out.add_metric(0, loss);
  }

  void evaluate_pairs(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    size_t num_pairs = 0;
    batch.for_each_pair([&](size_t, size_t) { ++num_pairs; });
    batch.for_each_pair([&](size_t chosen, size_t rejected) {
      const auto reward = [&](size_t i) { return beta_ * (batch.logp()[i] - batch.reference_logp()[i]); };
      const double delta = reward(chosen) - reward(rejected);
      double factor = has("divides by the batch") ? 1.0 / static_cast<double>(num_pairs) : 1.0;
      if (has("weighs by place")) factor = static_cast<double>(chosen + 1);
      double loss = softplus(-delta), slope = -beta_ * sigmoid(-delta);
      if (hinge_) {
        const double margin = has("ignores margin") ? 1 : margin_;
        loss = std::max(0.0, margin - delta);
        slope = margin > delta ? -beta_ : 0.0;
      }
      if (has("overflows")) loss = std::log(1 + std::exp(-delta));
      if (has("infinite metric")) out.add_metric(0, 1 / (delta - delta));
      add(out, factor * loss);
      out.add_grad_logp(0, chosen, factor * slope);
      out.add_grad_logp(0, rejected, factor * (has("half a gradient") ? -0.5 : -1.0) * slope);
      out.add_term(1, -batch.logp()[chosen]);
      if (!has("no gradient of nll")) out.add_grad_logp(1, chosen, -1);
    });
  }

  void evaluate_labels(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    for (size_t i = 0; i < batch.num_sequences(); ++i) {
      if (batch.role()[i] == CHASSIS_SEQUENCE_MISMATCH) {
        if (has("moves mismatches")) out.add_grad_logp(0, i, 1e-3);
        continue;
      }
      const double sign = batch.target(i)[0] == 1 ? -1 : 1, weight = batch.sequence_state(i)[0];
      const double x = sign * (beta_ * (batch.logp()[i] - batch.reference_logp()[i]) - batch.state()[0]);
      add(out, weight * softplus(x));
      out.add_grad_logp(0, i, weight * sign * beta_ * sigmoid(x));
    }
  }

  void evaluate_rollouts(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    batch.for_each_unit([&](size_t begin, size_t end) {
      double mean = 0;
      for (size_t i = begin; i < end; ++i) mean += batch.target(i)[0] / static_cast<double>(end - begin);
      for (size_t i = begin; i < end; ++i)
        for (size_t j = 0; j < batch.token_logp(i).size(); ++j) {
          const double shift = beta_ * (batch.token_logp(i)[j] - batch.old_token_logp(i)[j]);
          const double loss = (0.3 - batch.target(i)[0] + mean) * std::exp(std::min(shift, 20.0));
          add(out, loss);
          const size_t token = batch.first_token(i) + (has("gradient of the first token") ? 0 : j);
          out.add_grad_token_logp(0, token, shift < 20 ? beta_ * loss : 0.0);
        }
    });
  }

  // Log-probabilities, weighted by a function of their ratio that has no gradient.
  void evaluate_weighted(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    for (size_t i = 0; i < batch.num_sequences(); ++i)
      for (size_t j = 0; j < batch.token_logp(i).size(); ++j) {
        const double logp = batch.token_logp(i)[j], shift = std::min(beta_ * (logp - batch.old_token_logp(i)[j]), 3.0);
        const double weight = batch.target(i)[0] * std::exp(shift);
        add(out, weight * logp);
        out.add_grad_token_logp(0, batch.first_token(i) + j, has("half a weight") ? weight / 2 : weight);
      }
  }

  void evaluate_classes(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    for (size_t i = 0; i < batch.num_sequences(); ++i) {
      const auto score = batch.score(i);
      const double largest = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (const double value : score) sum += std::exp(value - largest);
      const auto target = static_cast<size_t>(batch.target(i)[0]);
      add(out, largest + std::log(sum) - score[target]);
      for (size_t k = 0; k < score.size(); ++k)
        out.add_grad_score(0, i, k, std::exp(score[k] - largest) / sum - (k == target && !has("all wrong") ? 1 : 0));
    }
  }

  void evaluate_values(const ObjectiveBatch& batch, ObjectiveResult& out) const {
    for (size_t i = 0; i < batch.num_sequences(); ++i)
      for (size_t k = 0; k < batch.score(i).size(); ++k) {
        const double error = batch.score(i)[k] - batch.target(i)[k];
        if (std::isnan(error) && !has("takes NaN")) continue;
        add(out, error * error);
        out.add_grad_score(0, i, k, 2 * error);
      }
  }

  std::string data_, fault_;
  double beta_, margin_;
  bool hinge_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", NonconformingObjective)
