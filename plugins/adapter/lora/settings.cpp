// The options of [adapter], with PEFT's meaning.
#include "settings.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "chassis/guard.hpp"

namespace lora {

using namespace chassis;

namespace {

std::vector<NamePattern> patterns(const Host& host, std::string_view name) {
  std::vector<NamePattern> out;
  try {
    for (std::string& text : option_value<std::vector<std::string>>(host, name)) out.emplace_back(std::move(text));
  } catch (const Failure& failure) {
    fail_invalid(place_of(host, name), failure.what());
  }
  return out;
}

template <typename Number>
std::vector<std::pair<EndPattern, Number>> numbers_by_pattern(const Host& host, std::string_view name) {
  std::vector<std::pair<EndPattern, Number>> out;
  const auto table = nlohmann::ordered_json::parse(option_json(host, name));
  for (const auto& [pattern, value] : table.items()) {
    const bool fits = std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
    if (!fits || value.template get<double>() <= 0 || value.template get<double>() > 1e9)
      fail_invalid(place_of(host, name), pattern, " = ", value.dump(), ", expected a ",
                   std::is_integral_v<Number> ? "whole " : "", "number above 0 and at most 1e9");
    try {
      out.emplace_back(EndPattern(pattern), value.template get<Number>());
    } catch (const Failure& failure) {
      fail_invalid(place_of(host, name), failure.what());
    }
  }
  return out;
}

}  // namespace

const Options& options() {
  static const Options schema = {
      option("rank", 16).range(1, 1 << 20).doc("r: rows of A and columns of B"),
      option("alpha", 0.0).range(0, 1e9).doc("the branch is scaled by alpha / rank; 0: alpha is 2 × rank"),
      option("dropout", 0.0).range(0, 0.999).doc("on the input of A, in training"),
      option("targets", std::vector<std::string>{std::string(kAllLinear)})
          .doc("modules that get a branch: ends of names such as \"q_proj\", regular expressions for whole names, or "
               "\"all-linear\" (all but the head)"),
      option("target_parameters", std::vector<std::string>{})
          .doc("parameters of experts that get a branch for each expert, in addition to targets, by PEFT's names: "
               "\"mlp.experts.gate_up_proj\", \"mlp.experts.down_proj\""),
      option("exclude", std::vector<std::string>{}).doc("modules that get none, as in targets"),
      option("layers", "").doc("only in these layers: \"0:16\", \"0:4,8\"; empty: in all"),
      table("rank_pattern").doc("other ranks by end of a module's name: { down_proj = 32 }"),
      table("alpha_pattern").doc("other alphas by end of a module's name"),
      option("modules_to_save", std::vector<std::string>{})
          .doc("modules that are trained in full and saved with the adapter, as in targets: \"lm_head\", "
               "\"embed_tokens\""),
      option("use_rslora", false).doc("scale by alpha / √rank"),
      option("init", "kaiming").choices({"kaiming", "gaussian"}).doc("of A; B is 0 at the start"),
      option("bias", "none").choices({"none", "lora_only"}).doc("lora_only: biases of the targets are trained too"),
      option("lora_plus_ratio", 1.0).range(1e-3, 1e6).doc("learning rate of B over that of A (LoRA+)"),
  };
  return schema;
}

std::string place_of(const Host& host, std::string_view option) {
  const std::string origin = option_origin(host, option);
  return (origin == "default" ? "" : origin + ": ") + "adapter." + std::string(option) + ": ";
}

Settings settings_from_options(const Host& host) {
  Settings s;
  s.rank = option_value<int64_t>(host, "rank");
  s.alpha = option_value<double>(host, "alpha");
  if (s.alpha == 0) s.alpha = 2.0 * static_cast<double>(s.rank);
  if (s.alpha < kLeastAlpha)
    fail_invalid(place_of(host, "alpha"), s.alpha, ", expected 0 (for 2 × rank) or at least ", kLeastAlpha);
  s.dropout = option_value<double>(host, "dropout");
  s.targets = patterns(host, "targets");
  s.target_parameters = patterns(host, "target_parameters");
  if (s.targets.empty() && s.target_parameters.empty())
    fail_invalid(place_of(host, "targets"),
                 "the list is empty, so nothing would get a branch; \"all-linear\" means all linears");
  if (!s.target_parameters.empty() && s.dropout > 0)
    fail_invalid(place_of(host, "dropout"), s.dropout,
                 ", but branches of target_parameters have no dropout, as in PEFT: set it to 0");
  s.exclude = patterns(host, "exclude");
  try {
    s.layers = LayerRanges(option_value<std::string>(host, "layers"));
  } catch (const Failure& failure) {
    fail_invalid(place_of(host, "layers"), failure.what());
  }
  s.rank_pattern = numbers_by_pattern<int64_t>(host, "rank_pattern");
  s.alpha_pattern = numbers_by_pattern<double>(host, "alpha_pattern");
  s.modules_to_save = patterns(host, "modules_to_save");
  s.use_rslora = option_value<bool>(host, "use_rslora");
  s.gaussian_init = option_value<std::string>(host, "init") == "gaussian";
  s.trains_bias = option_value<std::string>(host, "bias") == "lora_only";
  s.lora_plus_ratio = option_value<double>(host, "lora_plus_ratio");
  return s;
}

int64_t Settings::rank_of(std::string_view module) const {
  for (const auto& [pattern, value] : rank_pattern)
    if (pattern.matches(module)) return value;
  return rank;
}

double Settings::scale_of(std::string_view module) const {
  double own = alpha;
  for (const auto& [pattern, value] : alpha_pattern)
    if (pattern.matches(module)) {
      own = value;
      break;
    }
  const auto r = static_cast<double>(rank_of(module));
  return own / (use_rslora ? std::sqrt(r) : r);
}

}  // namespace lora
