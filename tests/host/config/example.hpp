// A complete configuration, options as a plugin exports them, and a function that returns the errors found.
#pragma once

#include <string>
#include <vector>

#include "host/config/config.hpp"

namespace chassis {

inline const std::string kExample = R"(schema_version = 1
[run]
name = "quickstart"
max_steps = 200
[model]
plugin = "llama"
config = { hidden_size = 256, num_hidden_layers = 4, rope_theta = 5e5, nested = { a = [1, 2] } }
[tokenizer]
plugin = "bytes"
[train]
seq_len = 512
micro_batch_size = 8
global_batch_size = 32
[[data.train]]
path = "tiny.txt"
[optimizer]
lr = 3e-4
betas = [0.9, 0.95]
[schedule]
name = "cosine"
warmup_steps = 20
min_lr_ratio = 0.1
)";

inline std::vector<OptionSpec> adam_options() {
  return {{.name = "betas",
           .type = OptionType::kFloatList,
           .default_json = "[0.9, 0.999]",
           .min = 0,
           .max = 1,
           .doc = "decay rates of the moments"},
          {.name = "eps", .type = OptionType::kFloat, .default_json = "1e-8", .min = 0, .doc = "added to the root"}};
}

// Checks [optimizer] against the options above and all other slots without options, and finishes.
inline Config load_whole(Config config) {
  for (const PluginSlot& slot : config.plugin_slots()) {
    if (slot.plugin != "adamw") continue;
    config.check_plugin_options(slot.key, slot.plugin, adam_options());
  }
  config.finish();
  return config;
}

inline std::string what_is_wrong(const std::string& text, const std::vector<std::string>& overrides = {},
                                 ConfigUse use = ConfigUse::kTraining) {
  try {
    load_whole(load_config_text(text, "a.toml", overrides, use));
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing";
}

}  // namespace chassis
