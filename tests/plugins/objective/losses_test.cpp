// Losses and metrics against numbers that were computed by hand.
#include <gtest/gtest.h>

#include "chassis/log_sigmoid.hpp"
#include "tests/support/objective_run.hpp"

namespace {

using fake::ObjectiveData;
using fake::ObjectiveRun;
using fake::ObjectiveSums;

class Losses : public testing::Test {
 protected:
  ObjectiveRun run(const std::string& plugin, const std::map<std::string, std::string>& options = {}) {
    plugins_.push_back(std::make_unique<fake::Plugin>(host_, CHASSIS_TEST_PLUGIN_DIR "/" + plugin + ".so"));
    return {host_, *plugins_.back(), plugin, options};
  }
  struct Outcome {
    double loss;
    ObjectiveSums sums;
    std::map<std::string, double> metrics;
  };
  static Outcome outcome(const ObjectiveRun& run, ObjectiveData& data) {
    run.prepare(data);
    const auto weights = run.weights(data);
    const ObjectiveSums sums = run.evaluate(data, weights);
    return {ObjectiveRun::loss(sums, weights), sums, run.metrics(sums.sums)};
  }
  // Pairs with these log-ratios; answers have `lengths` tokens of log-probability -1.
  static ObjectiveData pairs(const std::vector<std::pair<double, double>>& log_ratios, double chosen_length = 2,
                             double rejected_length = 4) {
    ObjectiveData data;
    for (size_t pair = 0; pair < log_ratios.size(); ++pair) {
      data.role.insert(data.role.end(), {CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED});
      data.unit.insert(data.unit.end(), {pair, pair});
      data.margin.insert(data.margin.end(), {0, 0});
      data.length.insert(data.length.end(), {chosen_length, rejected_length});
      data.logp.insert(data.logp.end(), {-chosen_length, -rejected_length});
      data.reference_logp.insert(data.reference_logp.end(),
                                 {-chosen_length - log_ratios[pair].first, -rejected_length - log_ratios[pair].second});
    }
    return data;
  }

  fake::Host host_;
  std::vector<std::unique_ptr<fake::Plugin>> plugins_;
};

TEST_F(Losses, BeginAtLog2IfThePolicyIsTheReference) {
  ObjectiveData data = pairs({{0, 0}, {0, 0}, {0, 0}});
  const Outcome found = outcome(run("dpo"), data);
  EXPECT_DOUBLE_EQ(found.loss, std::log(2));
  EXPECT_EQ(found.metrics.at("rewards/accuracies"), 0) << "a tie is not correct";
  EXPECT_EQ(found.metrics.at("rewards/margins"), 0);
  EXPECT_EQ(found.metrics.at("logps/chosen"), -2);
  EXPECT_EQ(found.metrics.at("logps/rejected"), -4);
  for (size_t i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(found.sums.grad_logp[i], (i % 2 == 0 ? -1 : 1) * 0.1 * 0.5 / 3);
}

TEST_F(Losses, OfDpoCompareLogRatios) {
  ObjectiveData data = pairs({{3, 1}, {-2, 2}});
  const Outcome found = outcome(run("dpo", {{"beta", "0.5"}}), data);
  EXPECT_NEAR(found.loss, (std::log1p(std::exp(-1.0)) + std::log1p(std::exp(2.0))) / 2, 1e-15);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/chosen"), 0.25);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/rejected"), 0.75);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/margins"), -0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/accuracies"), 0.5);
}

TEST_F(Losses, OfIpoCompareMeansOrSums) {
  ObjectiveData data = pairs({{3, 2}});
  EXPECT_NEAR(outcome(run("dpo", {{"loss", "[\"ipo\"]"}}), data).loss, std::pow(3.0 / 2 - 2.0 / 4 - 5, 2), 1e-12);
  EXPECT_NEAR(outcome(run("dpo", {{"loss", "[\"ipo\"]"}, {"length_normalize", "\"sum\""}}), data).loss,
              std::pow(3.0 - 2 - 5, 2), 1e-12);
}

TEST_F(Losses, OfTokensAreDividedByTheTokensOfChosenAnswers) {
  ObjectiveData data = pairs({{0, 0}, {0, 0}});
  data.logp[0] = -9, data.reference_logp[0] = -9, data.length[0] = 10;
  const Outcome found = outcome(run("dpo", {{"sft_weight", "0.5"}}), data);
  EXPECT_DOUBLE_EQ(found.loss, std::log(2) + 0.5 * (9.0 + 2) / (10 + 2));
  EXPECT_DOUBLE_EQ(found.metrics.at("nll_loss"), 11.0 / 12);
  ObjectiveData same = data;
  EXPECT_DOUBLE_EQ(outcome(run("dpo", {{"loss", "[\"sigmoid\", \"sft\"]"}, {"loss_weights", "[1, 0.5]"}}), same).loss,
                   found.loss);
}

TEST_F(Losses, OfForwardKlAndJsKeepTheirConstants) {
  ObjectiveData data = pairs({{1, -1}});
  const std::string loss = "[\"ipo\"]";
  EXPECT_NEAR(outcome(run("dpo", {{"loss", loss}, {"f_divergence", "\"forward_kl\""}}), data).loss,
              std::pow((1 - std::exp(-1)) / 2 - (1 - std::exp(1)) / 4 - 5, 2), 1e-12);
  const auto js = [](double s) { return std::log(2) - std::log1p(std::exp(-s)); };
  EXPECT_NEAR(outcome(run("dpo", {{"loss", loss}, {"f_divergence", "\"js_divergence\""}}), data).loss,
              std::pow(js(1) / 2 - js(-1) / 4 - 5, 2), 1e-12);
}

TEST_F(Losses, OfAotMatchByRankOverTheWholeBatch) {
  // Differences of log-probabilities: the policy's are all 2; the references' are 0 - … by their log-ratios.
  ObjectiveData data = pairs({{4, 1}, {0, 2}, {1, 1}});
  const std::map<std::string, std::string> options = {{"loss", "[\"aot_unpaired\"]"}, {"beta", "1.0"}};
  const auto logistic = [](double x) { return std::log1p(std::exp(-x)); };
  // Sorted chosen log-ratios are 0, 1, 4; sorted rejected ones 1, 1, 2.
  EXPECT_NEAR(outcome(run("dpo", options), data).loss, (logistic(-1) + logistic(0) + logistic(2)) / 3, 1e-12);
  data.logp = {-2, -4, -3, -1, -2, -7};  // differences 2, -2, 5, those of the references -1, -(-2) …
  double sum = 0;
  std::vector<double> policy, reference;
  for (size_t i = 0; i < 6; i += 2) {
    policy.push_back(data.logp[i] - data.logp[i + 1]);
    reference.push_back(data.reference_logp[i] - data.reference_logp[i + 1]);
  }
  std::sort(policy.begin(), policy.end()), std::sort(reference.begin(), reference.end());
  for (size_t i = 0; i < 3; ++i) sum += logistic(policy[i] - reference[i]);
  EXPECT_NEAR(outcome(run("dpo", {{"loss", "[\"aot\"]"}, {"beta", "1.0"}}), data).loss, sum / 3, 1e-12);
}

TEST_F(Losses, WithLdAlphaWeighTokensBeyondTheShorterAnswer) {
  ObjectiveRun with = run("dpo", {{"ld_alpha", "0.25"}, {"beta", "1.0"}});
  ObjectiveData data;
  data.role = {CHASSIS_SEQUENCE_CHOSEN, CHASSIS_SEQUENCE_REJECTED};
  data.unit = {0, 0}, data.margin = {0, 0}, data.length = {1, 3}, data.first_token = {0, 1, 4};
  data.token_logp = {-1, -2, -3, -5};
  data.reference_token_logp = {-2, -2.5, -1, -1};
  data.logp = {-1, -10}, data.reference_logp = {-2, -4.5};
  const Outcome found = outcome(with, data);
  const double rejected = -2 - 0.25 * 8 - (-2.5 - 0.25 * 2), x = 1 - rejected;
  EXPECT_NEAR(found.loss, std::log1p(std::exp(-x)), 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("logps/rejected"), -4);
  const double slope = 1 / (1 + std::exp(x));
  EXPECT_NEAR(found.sums.grad_logp[1] + found.sums.grad_token_logp[1], slope, 1e-12);
  EXPECT_NEAR(found.sums.grad_logp[1] + found.sums.grad_token_logp[3], 0.25 * slope, 1e-12);
}

TEST_F(Losses, OfKtoCompareWithTheMeanOfMismatches) {
  ObjectiveRun kto = run("kto", {{"beta", "0.5"}, {"desirable_weight", "2.0"}});
  ObjectiveData data;
  const uint32_t answer = CHASSIS_SEQUENCE_ANSWER, mismatch = CHASSIS_SEQUENCE_MISMATCH;
  data.role = {answer, mismatch, answer, mismatch};
  data.unit = {0, 0, 1, 1}, data.target = {1, 1, 0, 0}, data.length = {1, 1, 1, 1};
  data.logp = {-1, -2, -3, -4}, data.reference_logp = {-4, -5, -4, -5};  // log-ratios 3, 3, 1, 1: z is 2
  const auto logistic = [](double x) { return 1 / (1 + std::exp(-x)); };
  Outcome found = outcome(kto, data);
  EXPECT_NEAR(found.loss, (2 * (1 - logistic(0.5 * 1)) + 1 - logistic(0.5 * 1)) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("kl"), 2);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/chosen"), 1.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/rejected"), 0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("rewards/margins"), 1);
  EXPECT_DOUBLE_EQ(found.metrics.at("logps/chosen"), -1);
  data.reference_logp = {-4, -1, -4, -1};  // log-ratios of mismatches -1, -3: z is not below 0
  data.target = {1, 1, 1, 1};
  found = outcome(kto, data);
  EXPECT_EQ(found.metrics.at("kl"), 0);
  EXPECT_TRUE(std::isnan(found.metrics.at("rewards/rejected"))) << "there is none";
  EXPECT_TRUE(std::isnan(found.metrics.at("rewards/margins")));
}

TEST_F(Losses, OfOrpoCompareOdds) {
  ObjectiveData data = pairs({{0, 0}});
  data.logp = {2 * std::log(0.5), 4 * std::log(0.25)};
  const Outcome found = outcome(run("orpo", {{"beta", "0.2"}}), data);
  EXPECT_NEAR(found.loss, std::log(2) - 0.2 * std::log(0.75), 1e-12);  // odds 1 and 1/3
  EXPECT_NEAR(found.metrics.at("log_odds_chosen"), std::log(3), 1e-12);
  EXPECT_NEAR(found.metrics.at("log_odds_ratio"), std::log(0.75), 1e-12);
  EXPECT_NEAR(found.metrics.at("nll_loss"), std::log(2), 1e-12);
  EXPECT_NEAR(found.metrics.at("logps/rejected"), std::log(0.25), 1e-12) << "a mean";
  data.logp = {0, 0};  // certain answers
  for (const double value : outcome(run("orpo"), data).sums.all()) EXPECT_TRUE(std::isfinite(value));
}

TEST_F(Losses, OfSimpoHaveNoCrossEntropyUnlessAsked) {
  ObjectiveData data = pairs({{0, 0}});
  data.logp = {-1, -6};  // means -0.5 and -1.5
  const std::map<std::string, std::string> simpo = {{"loss", "\"simpo\""}, {"beta", "2.0"}, {"gamma", "1.0"}};
  EXPECT_NEAR(outcome(run("cpo", simpo), data).loss, std::log1p(std::exp(-1.0)), 1e-12);
  EXPECT_NEAR(outcome(run("cpo"), data).loss, std::log1p(std::exp(-0.5)) + 0.5, 1e-12) << "cpo has it by default";
  auto alpha = simpo;
  alpha["loss"] = "\"alphapo\"", alpha["alpha"] = "0.25";
  const double chosen = (1 - std::exp(0.125)) / 0.25, rejected = (1 - std::exp(0.375)) / 0.25;
  EXPECT_NEAR(outcome(run("cpo", alpha), data).loss, std::log1p(std::exp(1 - 2 * (chosen - rejected))), 1e-12);
}

TEST_F(Losses, OfRewardsHaveMarginsAndACenter) {
  ObjectiveData data = pairs({{0, 0}, {0, 0}});
  data.logp.clear(), data.reference_logp.clear(), data.length.clear();
  data.score = {2, 1, 0, 0}, data.margin = {0.5, 0.5, 0, 0};
  const Outcome found = outcome(run("reward", {{"center_coefficient", "0.01"}}), data);
  EXPECT_NEAR(found.loss, (std::log1p(std::exp(-0.5)) + std::log(2)) / 2 + 0.01 * 9 / 2, 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("accuracy"), 0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("margin"), 0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("mean_reward"), 0.75);
}

TEST_F(Losses, OfClassesHaveAccuracyAndMacroF1) {
  ObjectiveRun classes = run("classify", {{"num_labels", "4"}, {"label_smoothing", "0.2"}});
  EXPECT_EQ(classes.desc.num_classes, 4u);
  ObjectiveData data;
  const std::vector<size_t> wanted = {0, 0, 1, 2}, predicted = {0, 1, 1, 0};  // class 3 does not occur
  double loss = 0;
  for (size_t i = 0; i < 4; ++i) {
    data.role.push_back(CHASSIS_SEQUENCE_ANSWER), data.unit.push_back(i);
    data.target.push_back(static_cast<double>(wanted[i]));
    for (size_t k = 0; k < 4; ++k) {
      data.score.push_back(k == predicted[i] ? 2 : 0);
      const double log_p = data.score.back() - std::log(std::exp(2) + 3);
      loss -= ((k == wanted[i] ? 0.8 : 0) + 0.05) * log_p / 4;
    }
  }
  const Outcome found = outcome(classes, data);
  EXPECT_NEAR(found.loss, loss, 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("accuracy"), 0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("macro_f1"), (2.0 / 4 + 2.0 / 3 + 0) / 3);
}

TEST_F(Losses, OfLabelsAndValuesAreMeansOverTargets) {
  ObjectiveData data;
  data.role = {CHASSIS_SEQUENCE_ANSWER, CHASSIS_SEQUENCE_ANSWER}, data.unit = {0, 1};
  data.target = {1, 0, 0, 1}, data.score = {3, -1, 2, -2};
  Outcome found = outcome(run("classify", {{"num_labels", "2"}, {"kind", "\"multi\""}}), data);
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  EXPECT_NEAR(found.loss, (softplus(-3) + softplus(-1) + softplus(2) + softplus(2)) / 4, 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("accuracy"), 0.5);
  EXPECT_DOUBLE_EQ(found.metrics.at("macro_f1"), (2.0 / 3 + 0) / 2);
  data.target = {1, std::nan(""), 0, 1};
  found = outcome(run("classify", {{"num_labels", "2"}, {"kind", "\"regression\""}}), data);
  EXPECT_DOUBLE_EQ(found.loss, (4.0 + 4 + 9) / 3) << "a missing value counts for nothing";
  EXPECT_EQ(found.sums.grad_score[1], 0);
  EXPECT_DOUBLE_EQ(found.metrics.at("mse"), 17.0 / 3);
}

// Two groups; the second has equal rewards.
ObjectiveData rollouts() {
  ObjectiveData data;
  data.unit = {0, 0, 1, 1}, data.role.assign(4, CHASSIS_SEQUENCE_ANSWER);
  data.target = {1, 0, 3, 3}, data.length = {1, 2, 1, 1}, data.first_token = {0, 1, 3, 4, 5};
  data.token_logp = {-1, -1, -2, -1, -1}, data.old_token_logp = {-1.5, -1.1, -2.1, -1, -1};
  data.reference_token_logp = {-1, -2, -2, -1, -1};
  data.logp = {-1, -3, -1, -1}, data.reference_logp = {-1, -4, -1, -1};
  return data;
}

TEST_F(Losses, OfPoliciesHaveAdvantagesWithinGroups) {
  ObjectiveData data = rollouts();
  const double advantage = 0.5 / (std::sqrt(0.5) + 1e-4);
  const Outcome dapo = outcome(run("policy"), data);
  // The ratio of the first answer is clipped at 1.2; those of the second are e^0.1.
  EXPECT_NEAR(dapo.loss, (-1.2 * advantage + 2 * std::exp(0.1) * advantage) / 5, 1e-12);
  EXPECT_EQ(dapo.sums.grad_token_logp[0], 0);
  EXPECT_NEAR(dapo.sums.grad_token_logp[1], std::exp(0.1) * advantage / 5, 1e-12);
  EXPECT_DOUBLE_EQ(dapo.metrics.at("reward"), 1.75);
  EXPECT_NEAR(dapo.metrics.at("reward_std"), std::sqrt((0.75 * 0.75 + 1.75 * 1.75 + 2 * 1.25 * 1.25) / 3), 1e-12);
  EXPECT_DOUBLE_EQ(dapo.metrics.at("frac_reward_zero_std"), 0.5);
  EXPECT_DOUBLE_EQ(dapo.metrics.at("clip_ratio/high_mean"), 0.2);
  EXPECT_DOUBLE_EQ(dapo.metrics.at("clip_ratio/low_mean"), 0);

  const Outcome grpo = outcome(run("policy", {{"loss", "\"grpo\""}, {"kl_beta", "0.5"}}), data);
  EXPECT_NEAR(grpo.loss, (-1.2 * advantage + std::exp(0.1) * advantage + 0.5 * std::exp(-1) / 2) / 4, 1e-12);
  EXPECT_NEAR(grpo.metrics.at("kl"), std::exp(-1) / 5, 1e-12);

  const Outcome dr = outcome(
      run("policy", {{"loss", "\"dr_grpo\""}, {"max_completion_length", "8"}, {"scale_rewards", "\"none\""}}), data);
  EXPECT_NEAR(dr.loss, (-1.2 * 0.5 + 2 * std::exp(0.1) * 0.5) / 8 / 4, 1e-12);

  const double of_batch = std::sqrt((0.75 * 0.75 + 1.75 * 1.75 + 2 * 1.25 * 1.25) / 3) + 1e-4;
  const Outcome batch = outcome(run("policy", {{"scale_rewards", "\"batch\""}}), data);
  EXPECT_NEAR(batch.loss, (-1.2 + 2 * std::exp(0.1)) * 0.5 / of_batch / 5, 1e-12);
}

TEST_F(Losses, OfPoliciesMayHaveOneRatioForAnAnswer) {
  ObjectiveData data = rollouts();
  data.old_token_logp[1] = -1.3;  // the mean log-ratio of the second answer is 0.2
  const double advantage = 0.5 / (std::sqrt(0.5) + 1e-4);
  const Outcome found = outcome(run("policy", {{"ratio", "\"sequence\""}, {"loss", "\"grpo\""}}), data);
  EXPECT_NEAR(found.loss, (-1.2 * advantage + std::exp(0.2) * advantage) / 4, 1e-12);
  for (const size_t token : {1, 2})
    EXPECT_NEAR(found.sums.grad_token_logp[token], std::exp(0.2) * advantage / 2 / 4, 1e-12);
}

// The ratios are weights without a gradient.
TEST_F(Losses, OfCispoWeighLogProbabilities) {
  ObjectiveData data = rollouts();
  const double advantage = 0.5 / (std::sqrt(0.5) + 1e-4);
  const Outcome found = outcome(run("policy", {{"loss", "\"cispo\""}}), data);
  EXPECT_NEAR(found.loss, (1.2 * advantage * 1 - std::exp(0.1) * advantage * 3) / 5, 1e-12);
  EXPECT_NEAR(found.sums.grad_token_logp[0], -1.2 * advantage / 5, 1e-12) << "a clipped token keeps its gradient";
  EXPECT_NEAR(found.sums.grad_token_logp[1], std::exp(0.1) * advantage / 5, 1e-12);
  EXPECT_DOUBLE_EQ(found.metrics.at("cispo_clip_ratio"), 0.2);
  EXPECT_FALSE(found.metrics.contains("clip_ratio/low_mean"));
}

TEST_F(Losses, OfSapoFallSmoothly) {
  ObjectiveData data = rollouts();
  const double advantage = 0.5 / (std::sqrt(0.5) + 1e-4);
  const auto soft = [](double ratio, double t) { return 4 / t / (1 + std::exp(-t * (ratio - 1))); };
  const Outcome found = outcome(run("policy", {{"loss", "\"sapo\""}}), data);
  EXPECT_NEAR(found.loss, (-soft(std::exp(0.5), 1) + soft(std::exp(0.1), 1.05)) * advantage / 4, 1e-12);
  EXPECT_FALSE(found.metrics.contains("clip_ratio/low_mean"));
  data.old_token_logp = data.token_logp;
  EXPECT_NEAR(outcome(run("policy", {{"loss", "\"sapo\""}}), data).sums.grad_token_logp[0], -advantage / 4, 1e-12);
}

TEST_F(Losses, OfLuspoCountTheTokensOfAnswers) {
  ObjectiveData data = rollouts();
  const double advantage = 0.5 / (std::sqrt(0.5) + 1e-4);
  const Outcome found = outcome(run("policy", {{"loss", "\"luspo\""}, {"ratio", "\"sequence\""}}), data);
  EXPECT_NEAR(found.loss, (-1.2 + 2 * std::exp(0.1)) * advantage / 4, 1e-12);
}

TEST(LogSigmoid, IsExactAtBothEnds) {
  using namespace chassis;
  for (const double x : {0.0, 1e-9, 1.0, 30.0, 40.0, 700.0, 800.0, 1e4, 1e300}) {
    EXPECT_DOUBLE_EQ(softplus(x), x > 40 ? x : std::log1p(std::exp(x)));
    EXPECT_DOUBLE_EQ(log_sigmoid(-x), -softplus(x));
    EXPECT_DOUBLE_EQ(softplus(-x), std::log1p(std::exp(-x)));
    EXPECT_DOUBLE_EQ(sigmoid(-x), x > 700 ? std::exp(-x) : 1 / (1 + std::exp(x)));
    EXPECT_DOUBLE_EQ(sigmoid(x), 1 / (1 + std::exp(-x)));
  }
  for (const double x : {1e-300, 1e-20, 1e-3, 0.6, 0.7, 5.0, 50.0, 1e4}) {
    const long double p = -expm1l(-static_cast<long double>(x));
    const double expected =
        x < 1 ? static_cast<double>(logl(p)) : static_cast<double>(log1pl(-expl(-static_cast<long double>(x))));
    EXPECT_NEAR(log1mexp(-x), expected, 1e-15 * std::abs(expected));
  }
}

}  // namespace
