// Keys that families of Qwen share: layers from max_window_layers on slide, if use_sliding_window is set; experts.
#pragma once

#include "families.hpp"

namespace decoder {

inline void read_qwen_windows(Reader& reader, Config& config) {
  const bool use = reader.boolean("use_sliding_window", false);
  const int64_t first = reader.find("max_window_layers") == nullptr ? 28 : reader.count("max_window_layers");
  read_sliding_layers(reader, config, 4096, [&](int64_t layer) { return use && layer >= first; });
  if (!use && !config.is_sliding.empty())
    chassis::fail_config({"layer_types", "use_sliding_window"},
                         "layer_types names sliding layers, but use_sliding_window is false");
}

inline void write_qwen_windows(const Config& config, Json& out) {
  if (!out.contains("use_sliding_window")) out["use_sliding_window"] = !config.is_sliding.empty();
}

// `defaults`: the numbers of the family.
inline void read_qwen_experts(Reader& reader, Config& config, const Experts& defaults) {
  read_experts(reader, config, reader.same_size("num_experts", "num_local_experts", defaults.num_experts, kMaxExperts),
               reader.size("num_experts_per_tok", defaults.num_chosen),
               reader.size("moe_intermediate_size", defaults.width));
  read_balance(reader, config);
  config.experts.normalize = reader.boolean("norm_topk_prob", false);
  read_expert_layers(reader, config);
}

inline void write_qwen_experts(const Config& config, Json& out) {
  write_experts(config, "num_experts", out);
  out["moe_intermediate_size"] = config.experts.width;
  out["norm_topk_prob"] = config.experts.normalize;
}

}  // namespace decoder
