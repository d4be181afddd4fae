// Legal options of every objective, such that each loss and each option is in at least one case.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace objective_cases {

using OptionMap = std::map<std::string, std::string>;  // name → JSON text

struct Case {
  std::string plugin;
  OptionMap options;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << c.plugin;
  for (const auto& [name, json] : c.options) out << " " << name << "=" << json;
  return out;
}

inline const std::vector<Case>& all() {
  static const std::vector<Case> cases = {
      {"dpo", {}},
      {"dpo", {{"beta", "3.0"}}},
      {"dpo", {{"label_smoothing", "0.1"}}},
      {"dpo", {{"loss", "[\"hinge\"]"}, {"beta", "0.5"}}},
      {"dpo", {{"loss", "[\"ipo\"]"}}},
      {"dpo", {{"loss", "[\"ipo\"]"}, {"length_normalize", "\"sum\""}}},
      {"dpo", {{"loss", "[\"exo_pair\"]"}, {"label_smoothing", "0.001"}}},
      {"dpo", {{"loss", "[\"nca_pair\"]"}}},
      {"dpo", {{"loss", "[\"robust\"]"}, {"label_smoothing", "0.3"}}},
      {"dpo", {{"loss", "[\"bco_pair\"]"}}},
      {"dpo", {{"loss", "[\"sppo_hard\"]"}}},
      {"dpo", {{"loss", "[\"apo_zero\"]"}}},
      {"dpo", {{"loss", "[\"apo_down\"]"}}},
      {"dpo", {{"loss", "[\"aot\"]"}, {"label_smoothing", "0.2"}}},
      {"dpo", {{"loss", "[\"aot_unpaired\"]"}, {"beta", "2.0"}}},
      {"dpo", {{"loss", "[\"discopop\"]"}, {"beta", "0.5"}}},
      {"dpo", {{"loss", "[\"discopop\"]"}, {"discopop_tau", "1.0"}}},
      {"dpo", {{"loss", "[\"sigmoid_norm\"]"}, {"beta", "4.0"}}},
      {"dpo", {{"loss", "[\"sigmoid\", \"sft\"]"}, {"loss_weights", "[1.0, 0.3]"}}},
      {"dpo", {{"loss", "[\"sigmoid\", \"bco_pair\"]"}, {"sft_weight", "0.7"}}},
      {"dpo", {{"loss", "[\"aot\", \"aot_unpaired\", \"hinge\"]"}, {"ld_alpha", "0.5"}}},
      {"dpo", {{"ld_alpha", "0.0"}, {"sft_weight", "1.0"}}},
      {"dpo", {{"f_divergence", "\"forward_kl\""}}},
      {"dpo", {{"f_divergence", "\"js_divergence\""}, {"loss", "[\"ipo\", \"sigmoid_norm\"]"}}},
      {"dpo", {{"f_divergence", "\"alpha_divergence\""}, {"ld_alpha", "0.3"}}},
      {"dpo", {{"f_divergence", "\"alpha_divergence\""}, {"alpha", "-0.5"}, {"loss", "[\"discopop\"]"}}},
      {"dpo", {{"f_divergence", "\"alpha_divergence\""}, {"alpha", "1.0"}}},
      {"kto", {}},
      {"kto", {{"beta", "2.0"}, {"desirable_weight", "1.3"}, {"undesirable_weight", "0.5"}}},
      {"kto", {{"loss", "\"apo_zero_unpaired\""}}},
      {"distill", {{"top_k", "5"}}},
      {"distill", {{"top_k", "5"}, {"temperature", "2.0"}, {"ce_weight", "0.4"}, {"kd_weight", "0.6"}}},
      {"distill", {{"top_k", "4"}, {"temperature", "1.5"}, {"teacher_temperature", "0.7"}}},
      {"distill", {{"top_k", "5"}, {"support", "\"top_k\""}, {"temperature", "0.9"}}},
      {"distill", {{"top_k", "5"}, {"support", "\"rest\""}}},
      {"distill", {{"top_k", "5"}, {"support", "\"top_k\""}, {"divergence", "\"reverse_kl\""}}},
      {"distill", {{"top_k", "5"}, {"support", "\"rest\""}, {"divergence", "\"reverse_kl\""}}},
      {"distill", {{"top_k", "5"}, {"divergence", "\"jsd\""}, {"beta", "0.3"}}},
      {"distill", {{"top_k", "5"}, {"divergence", "\"jsd\""}, {"support", "\"top_k\""}, {"temperature", "3.0"}}},
      {"distill", {{"top_k", "3"}, {"divergence", "\"jsd\""}, {"beta", "0.7"}, {"support", "\"rest\""}}},
      {"orpo", {}},
      {"orpo", {{"beta", "2.0"}, {"sft_weight", "0.0"}}},
      {"cpo", {}},
      {"cpo", {{"label_smoothing", "0.2"}, {"sft_weight", "0.5"}}},
      {"cpo", {{"loss", "\"hinge\""}}},
      {"cpo", {{"loss", "\"ipo\""}, {"sft_weight", "0.0"}}},
      {"cpo", {{"loss", "\"simpo\""}, {"beta", "2.0"}, {"gamma", "1.0"}, {"label_smoothing", "0.1"}}},
      {"cpo", {{"loss", "\"alphapo\""}, {"alpha", "0.5"}, {"beta", "2.0"}}},
      {"cpo", {{"loss", "\"alphapo\""}, {"alpha", "-0.5"}, {"sft_weight", "0.1"}}},
      {"reward", {}},
      {"reward", {{"center_coefficient", "0.01"}}},
      {"classify", {{"num_labels", "4"}}},
      {"classify", {{"num_labels", "3"}, {"label_smoothing", "0.1"}}},
      {"classify", {{"num_labels", "3"}, {"kind", "\"multi\""}}},
      {"classify", {{"num_labels", "2"}, {"kind", "\"regression\""}}},
      {"policy", {}},
      {"policy", {{"loss", "\"grpo\""}, {"kl_beta", "0.2"}, {"clip_low", "0.1"}, {"clip_high", "0.3"}}},
      {"policy", {{"loss", "\"dr_grpo\""}, {"max_completion_length", "16"}, {"scale_rewards", "\"none\""}}},
      {"policy", {{"loss", "\"bnpo\""}, {"scale_rewards", "\"batch\""}}},
      {"policy", {{"loss", "\"grpo\""}, {"ratio", "\"sequence\""}, {"clip_low", "0.05"}, {"kl_beta", "0.1"}}},
      {"policy", {{"ratio", "\"sequence\""}, {"loss", "\"dr_grpo\""}, {"max_completion_length", "9"}}},
      {"policy", {{"loss", "\"cispo\""}, {"clip_high", "0.3"}}},
      {"policy", {{"loss", "\"cispo\""}, {"kl_beta", "0.1"}}},
      {"policy", {{"loss", "\"sapo\""}}},
      {"policy",
       {{"loss", "\"sapo\""}, {"sapo_temperature_pos", "3.0"}, {"sapo_temperature_neg", "0.5"}, {"kl_beta", "0.1"}}},
      {"policy", {{"loss", "\"sapo\""}, {"ratio", "\"sequence\""}}},
      {"policy", {{"loss", "\"luspo\""}, {"ratio", "\"sequence\""}, {"clip_high", "0.05"}}},
      {"policy", {{"loss", "\"cispo\""}, {"old_logps", "\"model\""}}},
  };
  return cases;
}

}  // namespace objective_cases
