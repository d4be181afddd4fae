// Keys that Qwen2 and Qwen3 share: layers from max_window_layers on slide, if use_sliding_window is set.
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

}  // namespace decoder
