// Distillation from the likeliest tokens of a teacher at each position: forward and reverse KL divergence (Hinton et
// al. 2015; Gu et al. 2024, "MiniLLM") and their generalised Jensen-Shannon divergence (Agarwal et al. 2024, "On-policy
// distillation"). Divergences at a temperature are multiplied by its square, so that gradients keep their size.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Term : size_t { kDistillation, kCrossEntropy };
enum Metric : size_t { kDivergence, kAgreement, kTeacherMass, kStudentMass, kNll };

// The probability of all other tokens is a difference of sums of fp32, so smaller ones are rounding.
constexpr double kLeastRest = 1e-6;

double log_sum_exp(const std::vector<double>& values) {
  const double largest = *std::ranges::max_element(values);
  double sum = 0;
  for (const double value : values) sum += std::exp(value - largest);
  return largest + std::log(sum);
}

double mass(std::span<const double> logps) {
  double sum = 0;
  for (const double logp : logps) sum += capped_exp(logp);
  return sum;
}

class Distill final : public Objective {
 public:
  static constexpr std::string_view kDoc = "distillation from the likeliest tokens of a teacher, which the data give";

  static const Options& options() {
    static const Options schema = {
        option("divergence", "forward_kl")
            .choices({"forward_kl", "reverse_kl", "jsd"})
            .doc("forward_kl: of the model from the teacher; reverse_kl: of the teacher from the model; jsd: the "
                 "generalised Jensen-Shannon divergence (GKD)"),
        option("beta", 0.5)
            .range(0, 1)
            .doc("of jsd: the teacher's share of the mixture that both are compared with, between 0 and 1"),
        option("support", "vocabulary")
            .choices({"vocabulary", "top_k", "rest"})
            .doc("the tokens over which teacher and model are compared. vocabulary: all, and the teacher gives only "
                 "its top_k, divided by their sum; top_k: those, of both divided by their sums; rest: those as they "
                 "are, and all others as one"),
        option("top_k", 32)
            .range(1, 4096)
            .doc("the largest number of tokens that the data give for a position; rows with more are refused"),
        option("temperature", 1.0).range(1e-3, 1e3).doc("divides the logits of both"),
        option("teacher_temperature", 1.0).range(1e-3, 1e3).doc("the temperature of the log-probabilities in the data"),
        option("kd_weight", 1.0).range(0, 1e6).doc("weight of the divergence, which is divided by all trained tokens"),
        option("ce_weight", 0.0)
            .range(0, 1e6)
            .doc("weight of the cross entropy of the answers, divided by their tokens"),
    };
    return schema;
  }

  explicit Distill(const Host& host) : Objective(host) {
    divergence_ = option_value<std::string>(host, "divergence");
    support_ = option_value<std::string>(host, "support");
    beta_ = option_value<double>(host, "beta");
    top_k_ = static_cast<uint32_t>(option_value<int64_t>(host, "top_k"));
    temperature_ = option_value<double>(host, "temperature");
    const double teacher_temperature = option_value<double>(host, "teacher_temperature");
    teacher_scale_ = teacher_temperature / temperature_;
    kd_weight_ = option_value<double>(host, "kd_weight");
    ce_weight_ = option_value<double>(host, "ce_weight");
    if (divergence_ != "jsd") refuse_if_set(options(), "beta", "with ", shown("divergence"), ", only with \"jsd\"");
    if (divergence_ == "jsd" && (beta_ <= 0 || beta_ >= 1))
      fail_option("beta", "makes the divergence 0: set divergence = \"", beta_ <= 0 ? "forward_kl" : "reverse_kl",
                  "\", which it tends to when it is divided by ", beta_ <= 0 ? "beta" : "1 - beta");
    if (divergence_ == "reverse_kl" && support_ == "vocabulary")
      fail_option("support", "makes ", shown("divergence"),
                  " infinite: the teacher gives no probability to other tokens (try \"top_k\" or \"rest\")");
    if (support_ == "rest" && teacher_temperature != temperature_)
      fail_option("support", "needs equal temperatures, but ", shown("temperature"), " and ",
                  shown("teacher_temperature"),
                  ": the rest of the vocabulary is not known at another temperature (try \"top_k\")");
    if (kd_weight_ == 0) fail_option("kd_weight", "leaves out the teacher; train.task = \"sft\" needs none");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.units = CHASSIS_OBJECTIVE_ANSWERS;
    d.needs = CHASSIS_OBJECTIVE_TEACHER;
    d.top_k = top_k_;
    d.temperature = temperature_;
    d.terms = {{"kd", CHASSIS_COUNT_TOKENS}};
    if (ce_weight_ > 0) d.terms.push_back({"ce", CHASSIS_COUNT_TOKENS});
    d.metrics = {{"divergence", CHASSIS_BETTER_LOWER},
                 {"top1_agreement", CHASSIS_BETTER_HIGHER},
                 {"teacher_mass"},
                 {"student_mass"},
                 {"nll_loss", CHASSIS_BETTER_LOWER}};
    return d;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    for (size_t i = 0; i < batch.num_sequences(); ++i) {
      out.add_metric(kNll, -batch.logp()[i], batch.length()[i]);
      if (ce_weight_ > 0) {
        out.add_term(kCrossEntropy, -ce_weight_ * batch.logp()[i]);
        out.add_grad_logp(kCrossEntropy, i, -ce_weight_);
      }
    }
    const double weight = kd_weight_ * temperature_ * temperature_;
    std::vector<double> slopes;
    for (size_t token = 0; token < batch.num_tokens(); ++token) {
      const auto teacher = batch.teacher_logp(token), student = batch.top_logp(token);
      if (teacher.empty()) continue;
      const double divergence = compare(teacher, student, slopes);
      out.add_term(kDistillation, weight * divergence);
      for (size_t k = 0; k < slopes.size(); ++k) out.add_grad_top_logp(kDistillation, token, k, weight * slopes[k]);
      out.add_metric(kDivergence, divergence);
      out.add_metric(kAgreement, std::ranges::max_element(teacher) - teacher.begin() ==
                                     std::ranges::max_element(student) - student.begin());
      out.add_metric(kTeacherMass, mass(teacher));
      out.add_metric(kStudentMass, mass(student));
    }
  }

 private:
  // A token, or all others together: its part of the divergence of probabilities q of the teacher and p of the model,
  // and p times the derivative by p.
  struct Part {
    double value = 0, slope = 0;
  };
  Part part(double log_q, double log_p) const {
    const double q = std::exp(log_q), p = capped_exp(log_p);
    if (divergence_ == "forward_kl") return q == 0 ? Part{0, 0} : Part{q * (log_q - log_p), -q};
    if (divergence_ == "reverse_kl") return {p * (log_p - log_q), capped_exp_slope(log_p) * (log_p - log_q) + p};
    const double high = std::max(log_q, log_p), low = std::min(log_q, log_p);
    const double high_share = high == log_q ? beta_ : 1 - beta_;
    const double log_m = high + std::log(high_share + (1 - high_share) * std::exp(low - high));
    const double of_q = q == 0 ? 0 : q * (log_q - log_m), of_p = p == 0 ? 0 : p * (log_p - log_m);
    return {beta_ * of_q + (1 - beta_) * of_p, (1 - beta_) * of_p};
  }

  // Returns the divergence; `slopes` are its derivatives by the model's log-probabilities.
  double compare(std::span<const double> teacher, std::span<const double> student, std::vector<double>& slopes) const {
    std::vector<double> log_q(teacher.begin(), teacher.end()), log_p(student.begin(), student.end());
    for (double& value : log_q) value *= teacher_scale_;
    if (support_ != "rest") subtract(log_q, log_sum_exp(log_q));
    if (support_ == "top_k") subtract(log_p, log_sum_exp(log_p));
    double divergence = 0, sum_of_slopes = 0;
    slopes.clear();
    for (size_t k = 0; k < log_q.size(); ++k) {
      const Part own = part(log_q[k], log_p[k]);
      divergence += own.value;
      sum_of_slopes += own.slope;
      slopes.push_back(own.slope);
    }
    if (support_ == "top_k") {  // log p of each also has the sum of all
      for (size_t k = 0; k < slopes.size(); ++k) slopes[k] -= std::exp(log_p[k]) * sum_of_slopes;
      return divergence;
    }
    // The other tokens get their probability from these. Rationale: below kLeastRest the derivative stays that at
    // kLeastRest, since a model that is too sure would otherwise not be pulled back.
    const double p = std::max(1 - mass(student), kLeastRest);
    const double q = support_ == "rest" ? std::max(1 - mass(teacher), kLeastRest) : 0;
    const Part rest = part(q == 0 ? -kFarthest : std::log(q), std::log(p));
    for (size_t k = 0; k < slopes.size(); ++k) slopes[k] -= rest.slope / p * capped_exp_slope(student[k]);
    return divergence + rest.value;
  }
  static void subtract(std::vector<double>& values, double amount) {
    for (double& value : values) value -= amount;
  }

  static constexpr double kFarthest = 1e4;  // e^-1e4 is 0

  std::string divergence_, support_;
  double beta_ = 0, temperature_ = 1, teacher_scale_ = 1, kd_weight_ = 0, ce_weight_ = 0;
  uint32_t top_k_ = 0;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Distill)
