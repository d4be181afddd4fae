// The settings of a LoRA adapter, from the options of [adapter] or from adapter_config.json.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "chassis/options.hpp"
#include "targets.hpp"

namespace lora {

inline constexpr double kLeastAlpha = 1e-9;

struct Settings {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  std::vector<NamePattern> targets, target_parameters, exclude, modules_to_save;
  LayerRanges layers{std::string()};
  std::vector<std::pair<EndPattern, int64_t>> rank_pattern;
  std::vector<std::pair<EndPattern, double>> alpha_pattern;
  bool use_rslora = false;
  bool gaussian_init = false;
  bool trains_bias = false;    // of the targets
  bool ties_saved = false;     // ensure_weight_tying of PEFT's file
  bool is_classifier = false;  // task_type of PEFT's file is SEQ_CLS
  double lora_plus_ratio = 1;  // learning rate of B over that of A

  int64_t rank_of(std::string_view module) const;
  // s in y = W x + s · B A x (Hu et al. 2021; rsLoRA: Kalajdzievski 2023).
  double scale_of(std::string_view module) const;
};

const chassis::Options& options();
Settings settings_from_options(const chassis::Host& host);
// "run.toml:12:9: adapter.rank: " for messages; without a position if the option is not set.
std::string place_of(const chassis::Host& host, std::string_view option);

}  // namespace lora
