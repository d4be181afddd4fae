// Classification and regression of texts by the scores at their last tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Classify final : public Objective {
 public:
  static constexpr std::string_view kDoc = "classes or values of texts";

  static const Options& options() {
    static const Options schema = {
        option("kind", "single")
            .choices({"single", "multi", "regression"})
            .doc("single: one class for each text; multi: labels that are each 0 or 1; regression: values"),
        required<int64_t>("num_labels").range(1, 1 << 16).doc("scores of a text: its classes, labels or values"),
        option("label_smoothing", 0.0).range(0, 1).doc("share of single's target that is spread over all classes"),
    };
    return schema;
  }

  explicit Classify(const Host& host) : Objective(host) {
    const std::string kind = option_value<std::string>(host, "kind");
    kind_ = kind == "single" ? Kind::kSingle : kind == "multi" ? Kind::kMulti : Kind::kRegression;
    num_labels_ = option_value<size_t>(host, "num_labels");
    smoothing_ = option_value<double>(host, "label_smoothing");
    if (kind_ == Kind::kSingle && num_labels_ < 2)
      fail_option("num_labels", "must be at least 2 with ", shown("kind"), " (try objective.kind = \"regression\")");
    if (kind_ != Kind::kSingle) refuse_if_set(options(), "label_smoothing", "with ", shown("kind"));
    if (smoothing_ >= 1) fail_option("label_smoothing", "must be below 1: it would leave nothing of the classes");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.values = CHASSIS_OBJECTIVE_SCORES;
    d.units = CHASSIS_OBJECTIVE_TEXTS;
    d.num_scores = static_cast<uint32_t>(num_labels_);
    d.num_targets = kind_ == Kind::kSingle ? 1 : d.num_scores;
    if (kind_ == Kind::kRegression) {
      d.terms = {{"mse", CHASSIS_COUNT_TARGETS}};
      d.metrics = {{"mse", CHASSIS_BETTER_LOWER}};
      return d;
    }
    d.num_classes = kind_ == Kind::kSingle ? d.num_scores : 2;
    d.terms = {{kind_ == Kind::kSingle ? "cross_entropy" : "logistic", CHASSIS_COUNT_TARGETS}};
    d.metrics = {{"accuracy", CHASSIS_BETTER_HIGHER}, {"macro_f1", CHASSIS_BETTER_HIGHER}};
    d.num_sums = static_cast<uint32_t>(kClasses + kCountsPerClass * num_labels_);
    return d;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    for (size_t i = 0; i < batch.num_sequences(); ++i) {
      if (kind_ == Kind::kSingle) add_single(batch, i, out);
      if (kind_ == Kind::kMulti) add_multi(batch, i, out);
      if (kind_ == Kind::kRegression) add_regression(batch, i, out);
    }
  }

  void metrics(std::span<const double> sums, std::span<double> out) const override {
    if (kind_ == Kind::kRegression) return Objective::metrics(sums, out);
    out[0] = sums[kCorrect] / sums[kPredictions];
    // The mean over the classes that occur in targets or predictions. F1 = 2 · right ÷ (wanted + predicted).
    double total = 0, num_classes = 0;
    for (size_t k = 0; k < num_labels_; ++k) {
      const auto counts = sums.subspan(kClasses + kCountsPerClass * k, kCountsPerClass);
      if (counts[kWanted] + counts[kPredicted] == 0) continue;
      total += 2 * counts[kRight] / (counts[kWanted] + counts[kPredicted]);
      ++num_classes;
    }
    out[1] = num_classes == 0 ? std::numeric_limits<double>::quiet_NaN() : total / num_classes;
  }

 private:
  enum class Kind { kSingle, kMulti, kRegression };
  enum Sum : size_t { kCorrect, kPredictions, kClasses };  // then three counts for each class
  enum Count : size_t { kRight, kWanted, kPredicted, kCountsPerClass };

  static void count(std::span<double> sums, size_t label, bool wanted, bool predicted) {
    const auto counts = sums.subspan(kClasses + kCountsPerClass * label, kCountsPerClass);
    counts[kRight] += wanted && predicted, counts[kWanted] += wanted, counts[kPredicted] += predicted;
  }

  // Cross entropy with the target (1 - ε) onehot + ε / K; scores are shifted by the largest.
  void add_single(const ObjectiveBatch& batch, size_t i, ObjectiveResult& out) const {
    const auto scores = batch.score(i);
    const auto target = static_cast<size_t>(batch.target(i)[0]);
    const auto best = static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
    double sum = 0, mean = 0;
    for (const double score : scores) {
      sum += std::exp(score - scores[best]);
      mean += (score - scores[best]) / static_cast<double>(num_labels_);
    }
    out.add_term(0, std::log(sum) - (1 - smoothing_) * (scores[target] - scores[best]) - smoothing_ * mean);
    for (size_t k = 0; k < num_labels_; ++k) {
      const double wanted = (k == target ? 1 - smoothing_ : 0) + smoothing_ / static_cast<double>(num_labels_);
      out.add_grad_score(0, i, k, std::exp(scores[k] - scores[best]) / sum - wanted);
    }
    out.sums()[kCorrect] += best == target;
    out.sums()[kPredictions] += 1;
    count(out.sums(), target, true, best == target);
    if (best != target) count(out.sums(), best, false, true);
  }

  void add_multi(const ObjectiveBatch& batch, size_t i, ObjectiveResult& out) const {
    for (size_t k = 0; k < num_labels_; ++k) {
      const double score = batch.score(i)[k];
      const bool wanted = batch.target(i)[k] == 1, predicted = score > 0;
      out.add_term(0, softplus(wanted ? -score : score));
      out.add_grad_score(0, i, k, wanted ? -sigmoid(-score) : sigmoid(score));
      out.sums()[kCorrect] += wanted == predicted;
      out.sums()[kPredictions] += 1;
      count(out.sums(), k, wanted, predicted);
    }
  }

  void add_regression(const ObjectiveBatch& batch, size_t i, ObjectiveResult& out) const {
    for (size_t k = 0; k < num_labels_; ++k) {
      if (std::isnan(batch.target(i)[k])) continue;  // the data have none
      const double error = batch.score(i)[k] - batch.target(i)[k];
      out.add_term(0, error * error);
      out.add_grad_score(0, i, k, 2 * error);
      out.add_metric(0, error * error);
    }
  }

  Kind kind_ = Kind::kSingle;
  size_t num_labels_ = 0;
  double smoothing_ = 0;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Classify)
