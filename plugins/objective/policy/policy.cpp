// Policy gradients from rollouts with rewards: GRPO (Shao et al. 2024), Dr. GRPO (Liu et al. 2025), DAPO (Yu et al.
// 2025), CISPO (MiniMax 2025, arXiv 2506.13585), SAPO (arXiv 2511.20347), and ratios of sequences as in GSPO (Zheng et
// al. 2025) and LUSPO (arXiv 2602.05261). The answers come from the data, with the log-probabilities that their policy
// gave them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "chassis/log_sigmoid.hpp"
#include "chassis/objective.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

enum Term : size_t { kPolicy, kKl };
// The sum of kRewardStd is that of squares. Others follow, which depend on the options.
enum Metric : size_t { kReward, kRewardStd, kZeroStd, kNumOfRewards };
// From kNumOfRewards on, of losses that clip the objective. That of CISPO is its only one.
enum ClipMetric : size_t { kClipLow = kNumOfRewards, kClipHigh, kClipRegion, kEndOfClip };
constexpr size_t kCispoClip = kNumOfRewards;

// A mean, and the standard deviation with Bessel's correction; 0 of one value.
struct Moments {
  double mean = 0, std = 0;
  explicit Moments(const std::vector<double>& values) {
    const auto count = static_cast<double>(values.size());
    for (const double value : values) mean += value / count;
    for (const double value : values) std += (value - mean) * (value - mean);
    std = values.size() < 2 ? 0 : std::sqrt(std / (count - 1));
  }
};

class Policy final : public Objective {
 public:
  static constexpr std::string_view kDoc = "policy gradients from groups of answers with rewards (GRPO and relatives)";

  static const Options& options() {
    static const Options schema = {
        option("loss", "dapo")
            .choices({"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo"})
            .doc(
                "grpo: mean over answers of means over their tokens; bnpo and dapo: mean over all tokens of the global "
                "batch; dr_grpo: as dapo, but an answer counts as max_completion_length tokens; cispo: as dapo, but "
                "ratios are weights of log-probabilities, clipped and without a gradient; sapo: as grpo, with a smooth "
                "bound in place of clipping; luspo: mean over answers of sums over their tokens, with ratio = "
                "\"sequence\""),
        option("max_completion_length", 0)
            .range(0, 1 << 30)
            .doc("of dr_grpo: the largest number of tokens of an answer"),
        option("ratio", "token")
            .choices({"token", "sequence"})
            .doc("sequence: one ratio of new and old policy for all tokens of an answer, the geometric mean (GSPO)"),
        option("old_logps", "data")
            .choices({"data", "model"})
            .doc("log-probabilities of the policy that wrote the answers: those of the data, or those of the model as "
                 "it is; with the latter all ratios are 1, and the loss is the log-probability times the advantage"),
        option("clip_low", 0.2).range(0, 1).doc("ratios below 1 - clip_low are clipped"),
        option("clip_high", 0.2).range(0, 100).doc("ratios above 1 + clip_high are clipped (DAPO: 0.28; CISPO: 4)"),
        option("sapo_temperature_pos", 1.0)
            .range(0.01, 100)
            .doc("of sapo, for advantages above 0: how fast the gradient falls as the ratio leaves 1"),
        option("sapo_temperature_neg", 1.05).range(0.01, 100).doc("of sapo, for the other advantages"),
        option("scale_rewards", "group")
            .choices({"group", "batch", "none"})
            .doc("advantages are divided by the standard deviation of their group's rewards, by that of the global "
                 "batch, or not"),
        option("kl_beta", 0.0).range(0, 1e6).doc("weight of the divergence from the reference model; 0: no reference"),
    };
    return schema;
  }

  explicit Policy(const Host& host) : Objective(host) {
    loss_ = option_value<std::string>(host, "loss");
    max_length_ = static_cast<double>(option_value<int64_t>(host, "max_completion_length"));
    by_sequence_ = option_value<std::string>(host, "ratio") == "sequence";
    least_ratio_ = 1 - option_value<double>(host, "clip_low");
    largest_ratio_ = 1 + option_value<double>(host, "clip_high");
    scale_ = option_value<std::string>(host, "scale_rewards");
    kl_beta_ = option_value<double>(host, "kl_beta");
    temperature_pos_ = option_value<double>(host, "sapo_temperature_pos");
    temperature_neg_ = option_value<double>(host, "sapo_temperature_neg");
    if (loss_ == "dr_grpo" && max_length_ == 0)
      fail_option("max_completion_length", "must be the largest number of tokens of an answer with ", shown("loss"));
    is_on_policy_ = option_value<std::string>(host, "old_logps") == "model";
    if (is_on_policy_)
      for (const char* name : {"clip_low", "clip_high", "ratio", "sapo_temperature_pos", "sapo_temperature_neg"})
        refuse_if_set(options(), name, "with ", shown("old_logps"), ", where all ratios are 1");
    check_ratios();
    if (loss_ != "dr_grpo")
      refuse_if_set(options(), "max_completion_length", "with ", shown("loss"), ", only with \"dr_grpo\"");
  }

  ObjectiveDescription describe() const override {
    ObjectiveDescription d;
    d.units = CHASSIS_OBJECTIVE_ROLLOUTS;
    d.needs = CHASSIS_OBJECTIVE_TOKENS | (is_on_policy_ ? 0u : CHASSIS_OBJECTIVE_OLD_LOGPS);
    d.num_targets = 1;
    if (stops_ratio()) d.needs |= CHASSIS_OBJECTIVE_STOPPED_RATIO;
    const bool by_tokens = loss_ == "bnpo" || loss_ == "dapo" || loss_ == "cispo";
    const uint32_t count = by_tokens ? CHASSIS_COUNT_TOKENS : CHASSIS_COUNT_SEQUENCES;
    d.terms = {{loss_, count}};
    d.metrics = {{"reward", CHASSIS_BETTER_HIGHER}, {"reward_std"}, {"frac_reward_zero_std"}};
    if (loss_ == "cispo")
      d.metrics.push_back({"cispo_clip_ratio"});
    else if (loss_ != "sapo")
      for (const char* name : {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"})
        d.metrics.push_back({name});
    if (kl_beta_ > 0) {
      d.needs |= CHASSIS_OBJECTIVE_REFERENCE;
      d.terms.push_back({"kl", count});
      d.metrics.push_back({"kl"});
    }
    d.num_sums = static_cast<uint32_t>(2 * d.metrics.size());
    if (scale_ == "batch") {
      d.needs |= CHASSIS_OBJECTIVE_GLOBAL;
      d.state_size = 1;
    }
    return d;
  }

  // The standard deviation of all rewards.
  void prepare_step(const ObjectiveBatch& global, const ObjectiveState& out) const override {
    std::vector<double> rewards;
    for (size_t i = 0; i < global.num_sequences(); ++i) rewards.push_back(global.target(i)[0]);
    out.values[0] = Moments(rewards).std;
  }

  void evaluate(const ObjectiveBatch& batch, ObjectiveResult& out) const override {
    batch.for_each_unit([&](size_t begin, size_t end) {
      std::vector<double> rewards;
      for (size_t i = begin; i < end; ++i) rewards.push_back(batch.target(i)[0]);
      const Moments group(rewards);
      const double std = scale_ == "batch" ? batch.state()[0] : group.std;
      out.add_metric(kZeroStd, std < kZero, 1);
      for (size_t i = begin; i < end; ++i) {
        const double reward = batch.target(i)[0], centred = reward - group.mean;
        out.add_metric(kReward, reward);
        out.add_metric(kRewardStd, reward * reward);
        const double advantage = scale_ == "none" ? centred : centred / (std + kStdFloor);
        if (is_on_policy_)
          add_on_policy(batch, i, advantage, out);
        else
          stops_ratio()  ? add_weighted(batch, i, advantage, out)
          : by_sequence_ ? add_by_sequence(batch, i, advantage, out)
                         : add_by_token(batch, i, advantage, out);
        if (kl_beta_ > 0) add_kl(batch, i, out);
      }
    });
  }

  void metrics(std::span<const double> sums, std::span<double> out) const override {
    Objective::metrics(sums, out);
    const double count = sums[2 * kReward + 1], mean = out[kReward], square = out[kRewardStd];
    out[kRewardStd] = count < 2 ? std::numeric_limits<double>::quiet_NaN()
                                : std::sqrt(std::max(0.0, square - mean * mean) * count / (count - 1));
  }

 private:
  static constexpr double kStdFloor = 1e-4;
  static constexpr double kZero = 1e-8;

  bool stops_ratio() const { return loss_ == "cispo" && !is_on_policy_; }

  void check_ratios() const {
    if (loss_ == "luspo" && !by_sequence_ && !is_on_policy_)
      fail_option("ratio", "must be \"sequence\" with ", shown("loss"));
    if (loss_ == "cispo" && by_sequence_)
      fail_option("ratio", "does not fit ", shown("loss"), ", which weighs each token by its own ratio");
    if (loss_ == "cispo")
      refuse_if_set(options(), "clip_low", "with ", shown("loss"), ", which clips large ratios only");
    if (loss_ == "sapo")
      for (const char* name : {"clip_low", "clip_high"})
        refuse_if_set(options(), name, "with ", shown("loss"), ", which does not clip");
    else
      for (const char* name : {"sapo_temperature_pos", "sapo_temperature_neg"})
        refuse_if_set(options(), name, "with ", shown("loss"), ", only with \"sapo\"");
  }

  // The weight of a token within its sequence.
  double token_weight(double length) const {
    return loss_ == "grpo" || loss_ == "sapo" ? 1 / length : loss_ == "dr_grpo" ? 1 / max_length_ : 1;
  }

  struct Surrogate {
    double value = 0, slope = 0;  // -min(ratio · A, clipped ratio · A), and its derivative by the log of the ratio
    bool low = false, high = false;
  };
  Surrogate surrogate(double log_ratio, double advantage) const {
    return loss_ == "sapo" ? bounded(log_ratio, advantage) : clipped(log_ratio, advantage);
  }
  // -4/τ · σ(τ (ratio - 1)) · A, whose slope is -A where the ratio is 1.
  Surrogate bounded(double log_ratio, double advantage) const {
    const double temperature = advantage > 0 ? temperature_pos_ : temperature_neg_;
    const double x = temperature * (capped_exp(log_ratio) - 1);
    Surrogate s;
    s.value = -4 / temperature * sigmoid(x) * advantage;
    s.slope = -4 * sigmoid_slope(x) * capped_exp_slope(log_ratio) * advantage;
    return s;
  }
  Surrogate clipped(double log_ratio, double advantage) const {
    const double ratio = capped_exp(log_ratio), clipped = std::clamp(ratio, least_ratio_, largest_ratio_);
    Surrogate s;
    s.low = ratio < least_ratio_ && advantage<0, s.high = ratio> largest_ratio_ && advantage > 0;
    s.value = -std::min(ratio * advantage, clipped * advantage);
    s.slope = s.low || s.high ? 0 : -capped_exp_slope(log_ratio) * advantage;
    return s;
  }
  void add_clipping(const Surrogate& s, ObjectiveResult& out) const {
    if (loss_ == "sapo") return;
    out.add_metric(kClipLow, s.low);
    out.add_metric(kClipHigh, s.high);
    out.add_metric(kClipRegion, s.low || s.high);
  }

  // Williams 1992, "REINFORCE".
  void add_on_policy(const ObjectiveBatch& batch, size_t i, double advantage, ObjectiveResult& out) const {
    const auto logp = batch.token_logp(i);
    const double weight = -advantage * token_weight(static_cast<double>(logp.size()));
    for (size_t t = 0; t < logp.size(); ++t) {
      out.add_term(kPolicy, weight * logp[t]);
      out.add_grad_token_logp(kPolicy, batch.first_token(i) + t, weight);
    }
  }

  // -min(ratio, 1 + clip_high) · A · log-probability, in which the ratio has no gradient.
  void add_weighted(const ObjectiveBatch& batch, size_t i, double advantage, ObjectiveResult& out) const {
    const auto logp = batch.token_logp(i), old = batch.old_token_logp(i);
    for (size_t t = 0; t < logp.size(); ++t) {
      const double ratio = capped_exp(logp[t] - old[t]), slope = -std::min(ratio, largest_ratio_) * advantage;
      out.add_term(kPolicy, slope * logp[t]);
      out.add_grad_token_logp(kPolicy, batch.first_token(i) + t, slope);
      out.add_metric(kCispoClip, ratio > largest_ratio_ && advantage > 0);
    }
  }

  void add_by_token(const ObjectiveBatch& batch, size_t i, double advantage, ObjectiveResult& out) const {
    const auto logp = batch.token_logp(i), old = batch.old_token_logp(i);
    const double weight = token_weight(static_cast<double>(logp.size()));
    for (size_t t = 0; t < logp.size(); ++t) {
      const Surrogate s = surrogate(logp[t] - old[t], advantage);
      out.add_term(kPolicy, weight * s.value);
      out.add_grad_token_logp(kPolicy, batch.first_token(i) + t, weight * s.slope);
      add_clipping(s, out);
    }
  }

  void add_by_sequence(const ObjectiveBatch& batch, size_t i, double advantage, ObjectiveResult& out) const {
    const auto logp = batch.token_logp(i), old = batch.old_token_logp(i);
    const auto length = static_cast<double>(logp.size());
    double log_ratio = 0;
    for (size_t t = 0; t < logp.size(); ++t) log_ratio += (logp[t] - old[t]) / length;
    const Surrogate s = surrogate(log_ratio, advantage);
    // The loss counts for every token; each moves the mean by 1 / length, so these cancel in the gradient.
    out.add_term(kPolicy, token_weight(length) * length * s.value);
    for (size_t t = 0; t < logp.size(); ++t)
      out.add_grad_token_logp(kPolicy, batch.first_token(i) + t, token_weight(length) * s.slope);
    add_clipping(s, out);
  }

  // e^d - d - 1 with d = log(reference / policy): an estimate of the KL divergence of policy and reference that is
  // never negative (Schulman 2020, "Approximating KL divergence").
  void add_kl(const ObjectiveBatch& batch, size_t i, ObjectiveResult& out) const {
    const auto logp = batch.token_logp(i), reference = batch.reference_token_logp(i);
    const double weight = kl_beta_ * token_weight(static_cast<double>(logp.size()));
    for (size_t t = 0; t < logp.size(); ++t) {
      const double d = reference[t] - logp[t], kl = capped_expm1(d) - d;
      out.add_term(kKl, weight * kl);
      out.add_grad_token_logp(kKl, batch.first_token(i) + t, weight * (1 - capped_exp_slope(d)));
      out.add_metric(kl_metric(), kl);
    }
  }

  // The last one.
  size_t kl_metric() const { return loss_ == "sapo" ? kNumOfRewards : loss_ == "cispo" ? kCispoClip + 1 : kEndOfClip; }

  std::string loss_, scale_;
  double max_length_ = 0, least_ratio_ = 0, largest_ratio_ = 0, kl_beta_ = 0;
  double temperature_pos_ = 1, temperature_neg_ = 1;
  bool by_sequence_ = false, is_on_policy_ = false;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Policy)
