// adapter_config.json of PEFT 0.18 to 0.21, in both directions.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "settings.hpp"

namespace lora {

// Throws INVALID_ARGUMENT for what this plugin does not do, by name, and for values of a wrong type. lora_plus_ratio,
// which the file does not have, comes from `options`.
Settings settings_from_peft(std::string_view config_json, const Settings& options);
// peft_version of the file; empty if it has none.
std::string version_in_peft(std::string_view config_json);

// The names that PEFT needs in addition to the settings.
struct PeftNames {
  std::vector<std::string> target_modules, target_parameters;
  std::vector<std::pair<std::string, int64_t>> rank_pattern;  // of modules whose rank differs
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::vector<std::string> modules_to_save;
  bool ties_saved_modules = false;  // a saved module shares its weight with another
  bool has_head = false;            // the model has a head of scores, which is one of modules_to_save
};
std::string peft_config(const Settings& settings, const PeftNames& names, std::string_view base_path,
                        std::string_view base_config_json);

}  // namespace lora
