// Options that do not fit together are refused when an objective is created; the message names both.
#include <gtest/gtest.h>

#include "tests/plugins/objective/cases.hpp"
#include "tests/support/fake_host.hpp"

namespace {

using objective_cases::Case;
using objective_cases::OptionMap;

std::string refusal(const Case& c) {
  fake::Host host;
  fake::Plugin plugin(host, CHASSIS_TEST_PLUGIN_DIR "/" + c.plugin + ".so");
  try {
    fake::Instance(host, plugin, "objective", c.plugin, c.options);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

struct Illegal {
  std::string plugin;
  OptionMap options;
  std::vector<std::string> texts;  // in the message
};

const std::vector<Illegal>& illegal() {
  static const std::string kSmoothing = "objective.label_smoothing = 0.1 has no effect", kLoss = "objective.loss = [";
  static const std::vector<Illegal> cases = {
      {"dpo", {{"loss", "[]"}}, {"objective.loss = [] names no loss"}},
      {"dpo", {{"loss", "[\"hinge\", \"hinge\"]"}}, {"has \"hinge\" twice"}},
      {"dpo", {{"beta", "0.0"}}, {"objective.beta = 0.0 must be above 0"}},
      {"dpo",
       {{"loss", "[\"sigmoid\", \"sft\"]"}, {"loss_weights", "[1.0]"}},
       {"objective.loss_weights = [1.0] has 1 weights", "objective.loss = [\"sigmoid\", \"sft\"] has 2 losses"}},
      {"dpo", {{"loss_weights", "[1.0, 2.0]"}}, {"has 2 weights", "has 1 loss"}},
      {"dpo", {{"loss_weights", "[0.0]"}}, {"switches off \"sigmoid\"", kLoss}},
      {"dpo", {{"loss", "[\"sft\"]"}, {"sft_weight", "0.1"}}, {"objective.sft_weight = 0.1", kLoss, "already"}},
      {"dpo",
       {{"loss", "[\"robust\"]"}, {"label_smoothing", "0.5"}},
       {"label_smoothing = 0.5 must be below 0.5", kLoss}},
      {"dpo", {{"loss", "[\"exo_pair\"]"}}, {"label_smoothing = 0.0 must be above 0", kLoss, "1e-3"}},
      {"dpo", {{"discopop_tau", "0.1"}}, {"objective.discopop_tau = 0.1 has no effect", kLoss}},
      {"dpo", {{"length_normalize", "\"sum\""}}, {"objective.length_normalize = \"sum\" has no effect", kLoss}},
      {"dpo", {{"alpha", "0.7"}}, {"objective.alpha = 0.7 has no effect", "objective.f_divergence = \"reverse_kl\""}},
      {"dpo",
       {{"alpha", "0.7"}, {"f_divergence", "\"js_divergence\""}},
       {"objective.alpha = 0.7 has no effect", "objective.f_divergence = \"js_divergence\""}},
      {"dpo",
       {{"loss", "[\"sft\"]"}},
       {"objective.loss = [\"sft\"] compares no answers; set train.task = \"sft\", or add a loss of preferences"}},
      {"dpo",
       {{"loss", "[\"sigmoid\", \"aot\"]"}, {"f_divergence", "\"alpha_divergence\""}},
       {"no effect on \"aot\"", kLoss}},
      {"kto", {{"beta", "0.0"}}, {"objective.beta = 0.0 must be above 0"}},
      {"kto",
       {{"desirable_weight", "0.0"}, {"undesirable_weight", "0.0"}},
       {"objective.desirable_weight = 0.0", "objective.undesirable_weight = 0.0"}},
      {"orpo", {{"beta", "0.0"}}, {"objective.beta = 0.0 must be above 0"}},
      {"cpo", {{"beta", "0.0"}}, {"objective.beta = 0.0 must be above 0"}},
      {"cpo", {{"gamma", "1.0"}}, {"objective.gamma = 1.0 has no effect", "objective.loss = \"sigmoid\""}},
      {"cpo", {{"loss", "\"simpo\""}, {"alpha", "0.5"}}, {"objective.alpha = 0.5 has no effect", "\"simpo\""}},
      {"cpo", {{"loss", "\"alphapo\""}, {"alpha", "0.0"}}, {"objective.alpha = 0.0", "objective.loss = \"alphapo\""}},
      {"cpo", {{"loss", "\"hinge\""}, {"label_smoothing", "0.1"}}, {kSmoothing, "objective.loss = \"hinge\""}},
      {"cpo", {{"loss", "\"ipo\""}, {"label_smoothing", "0.1"}}, {kSmoothing, "objective.loss = \"ipo\""}},
      {"cpo", {{"sft_weight", "-0.5"}}, {"objective.sft_weight = -0.5 must be -1, 0 or above 0"}},
      {"classify", {{"num_labels", "1"}}, {"objective.num_labels = 1", "objective.kind = \"single\""}},
      {"classify",
       {{"num_labels", "3"}, {"label_smoothing", "1.0"}},
       {"objective.label_smoothing = 1.0 must be below 1"}},
      {"classify",
       {{"num_labels", "3"}, {"kind", "\"multi\""}, {"label_smoothing", "0.1"}},
       {kSmoothing, "objective.kind = \"multi\""}},
      {"classify",
       {{"num_labels", "1"}, {"kind", "\"regression\""}, {"label_smoothing", "0.1"}},
       {kSmoothing, "objective.kind = \"regression\""}},
      {"policy", {{"loss", "\"dr_grpo\""}}, {"objective.max_completion_length = 0", "objective.loss = \"dr_grpo\""}},
      {"policy", {{"max_completion_length", "9"}}, {"max_completion_length = 9 has no effect", "\"dapo\""}},
      {"policy",
       {{"loss", "\"cispo\""}, {"clip_low", "0.1"}},
       {"clip_low = 0.1 has no effect", "which clips large ratios only"}},
      {"policy", {{"loss", "\"cispo\""}, {"ratio", "\"sequence\""}}, {"objective.ratio = \"sequence\" does not fit"}},
      {"policy", {{"loss", "\"sapo\""}, {"clip_high", "0.1"}}, {"clip_high = 0.1 has no effect", "does not clip"}},
      {"policy", {{"sapo_temperature_neg", "2.0"}}, {"sapo_temperature_neg = 2.0 has no effect", "only with \"sapo\""}},
      {"policy", {{"loss", "\"luspo\""}}, {"objective.ratio = \"token\" must be \"sequence\"", "\"luspo\""}},
      {"policy",
       {{"loss", "\"sapo\""}, {"old_logps", "\"model\""}, {"sapo_temperature_pos", "2.0"}},
       {"sapo_temperature_pos = 2.0 has no effect", "where all ratios are 1"}},
  };
  return cases;
}

TEST(ObjectiveOptions, OfEveryCaseAreAccepted) {
  for (const Case& c : objective_cases::all()) EXPECT_EQ(refusal(c), "") << c;
}

TEST(ObjectiveOptions, WithoutEffectAreRefusedByName) {
  for (const Illegal& c : illegal()) {
    const std::string message = refusal({c.plugin, c.options});
    for (const std::string& text : c.texts)
      EXPECT_NE(message.find(text), std::string::npos)
          << Case{c.plugin, c.options} << ": '" << message << "'\nhas no '" << text << "'";
  }
}

TEST(ObjectiveOptions, HaveTheirPlaceInMessages) {
  EXPECT_EQ(
      refusal({"cpo", {{"gamma", "1.0"}}}),
      "run.toml:1:1: objective.gamma = 1.0 has no effect with objective.loss = \"sigmoid\", only with \"simpo\" and "
      "\"alphapo\"");
}

TEST(ObjectiveOptions, OfSmoothingAndDivergenceFitOnlySomeLosses) {
  const std::vector<std::string> smoothed = {"sigmoid", "robust", "exo_pair", "aot", "aot_unpaired"};
  const std::vector<std::string> divergent = {"sigmoid", "hinge",    "ipo",         "exo_pair",
                                              "robust",  "discopop", "sigmoid_norm"};
  const std::vector<std::string> losses = {"sigmoid", "hinge",        "ipo",       "exo_pair",    "nca_pair",
                                           "robust",  "bco_pair",     "sppo_hard", "apo_zero",    "apo_down",
                                           "aot",     "aot_unpaired", "discopop",  "sigmoid_norm"};
  const auto contains = [](const auto& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& loss : losses) {
    const std::string json = "[\"" + loss + "\"]";
    EXPECT_EQ(refusal({"dpo", {{"loss", json}, {"label_smoothing", "0.1"}}}).empty(), contains(smoothed, loss)) << loss;
    OptionMap options = {{"loss", json}, {"f_divergence", "\"forward_kl\""}};
    if (loss == "exo_pair") options["label_smoothing"] = "0.001";
    const std::string message = refusal({"dpo", options});
    EXPECT_EQ(message.empty(), contains(divergent, loss)) << loss;
    if (!message.empty()) {
      EXPECT_NE(message.find("objective.f_divergence = \"forward_kl\""), std::string::npos) << message;
      EXPECT_NE(message.find("objective.loss = " + json), std::string::npos) << message;
    }
  }
}

}  // namespace
