// KTO (Ethayarajh et al. 2024): answers that are labelled desirable or not, compared with a reference model.
#include <algorithm>
#include <string>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Metric : size_t { kChosen, kRejected, kChosenLogp, kRejectedLogp, kKl, kNumSums };  // sums of metrics and counts

class Kto final : public Objective {
 public:
  static constexpr std::string_view kDoc = "KTO: answers labelled desirable or not, compared with a reference model";

  static const Options& options() {
    static const Options schema = {
        option("loss", "kto")
            .choices({"kto", "apo_zero_unpaired"})
            .doc("kto compares with the mean log-ratio of mismatched prompts and answers, apo_zero_unpaired with 0"),
        option("beta", 0.1).range(0, 1e6).doc("how strongly the policy stays close to the reference; more is closer"),
        option("desirable_weight", 1.0)
            .range(0, 1e6)
            .doc("weight of desirable answers; weight × count should be 1 to 4/3 times that of undesirable ones"),
        option("undesirable_weight", 1.0).range(0, 1e6).doc("weight of undesirable answers"),
    };
    return schema;
  }

  explicit Kto(const Host& host) : Objective(host) {
    has_baseline_ = option_value<std::string>(host, "loss") == "kto";
    beta_ = option_value<double>(host, "beta");
    desirable_weight_ = option_value<double>(host, "desirable_weight");
    undesirable_weight_ = option_value<double>(host, "undesirable_weight");
    if (beta_ <= 0) fail_option("beta", "must be above 0 (try 0.1)");
    if (desirable_weight_ == 0 && undesirable_weight_ == 0)
      fail_option("desirable_weight", "and ", shown("undesirable_weight"), " leave nothing to train");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.units = CHASSIS_OBJECTIVE_LABELLED;
    d.needs = CHASSIS_OBJECTIVE_REFERENCE;
    d.num_targets = 1;
    d.terms = {{option_value<std::string>(host(), "loss")}};
    d.metrics = {{"rewards/chosen"},
                 {"rewards/rejected"},
                 {"rewards/margins", CHASSIS_BETTER_HIGHER},
                 {"logps/chosen"},
                 {"logps/rejected"}};
    d.num_sums = 2 * kNumSums;
    if (has_baseline_) {
      d.needs |= CHASSIS_OBJECTIVE_GLOBAL | CHASSIS_OBJECTIVE_MISMATCH;
      d.metrics.push_back({"kl"});
      d.state_size = 1;
    }
    return d;
  }

  // The baseline z: the mean log-ratio of the mismatches of the global batch, at least 0.
  void prepare_step(const ObjectiveBatch& global, const ObjectiveState& out) const override {
    double sum = 0;
    size_t count = 0;
    for (size_t i = 0; i < global.num_sequences(); ++i) {
      if (global.role()[i] != CHASSIS_SEQUENCE_MISMATCH) continue;
      sum += global.logp()[i] - global.reference_logp()[i];
      ++count;
    }
    out.values[0] = count == 0 ? 0 : std::max(0.0, sum / static_cast<double>(count));
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    const double baseline = has_baseline_ ? batch.state()[0] : 0;
    const auto add = [&](Metric metric, double value) { out.add_metric(metric, value); };
    for (size_t i = 0; i < batch.num_sequences(); ++i) {
      if (batch.role()[i] == CHASSIS_SEQUENCE_MISMATCH) continue;
      const bool desirable = batch.target(i)[0] == 1;
      const double log_ratio = batch.logp()[i] - batch.reference_logp()[i];
      const double weight = desirable ? desirable_weight_ : undesirable_weight_, sign = desirable ? 1 : -1;
      const double x = sign * beta_ * (log_ratio - baseline);
      out.add_term(0, weight * sigmoid(-x));
      out.add_grad_logp(0, i, -weight * sign * beta_ * sigmoid_slope(x));
      add(desirable ? kChosen : kRejected, beta_ * log_ratio);
      add(desirable ? kChosenLogp : kRejectedLogp, batch.logp()[i]);
      add(kKl, baseline);
    }
  }

  void metrics(std::span<const double> sums, std::span<double> out) const override {
    const auto mean = [&](Metric metric) { return sums[2 * metric] / sums[2 * metric + 1]; };
    out[0] = mean(kChosen);
    out[1] = mean(kRejected);
    out[2] = mean(kChosen) - mean(kRejected);  // not known without both
    out[3] = mean(kChosenLogp);
    out[4] = mean(kRejectedLogp);
    if (has_baseline_) out[5] = mean(kKl);
  }

 private:
  bool has_baseline_ = false;
  double beta_ = 0, desirable_weight_ = 0, undesirable_weight_ = 0;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Kto)
