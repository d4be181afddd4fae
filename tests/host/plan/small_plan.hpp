// Plans of a small Llama, with any strategy on any number of ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/plan/plan.hpp"

namespace chassis {

// 4 layers with hidden size 64, untied; not divisible by 3 ranks. "device" is never used.
inline constexpr const char* kRun = R"(schema_version = 1
[run]
name = "small"
max_steps = 1
device = "cpu"
[model]
plugin = "llama"
[model.config]
hidden_size = 64
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 192
vocab_size = 1024
[[data.train]]
path = "nowhere.jsonl"
format = "tokens"
[train]
seq_len = 128
micro_batch_size = 4
global_batch_size = 48
[optimizer]
plugin = "adamw"
lr = 1e-3
[attention]
plugin = "sdpa"
[kernels]
plugins = ["fused", "aten"]
[plugins]
path = [")" CHASSIS_TEST_PLUGIN_DIR R"("]
)";
inline constexpr int64_t kParameters = 2 * 1024 * 64 + 4 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 192 + 2 * 64) + 64;

inline std::string with_strategy(const std::string& table) {
  return std::string(kRun) + "[[parallel]]\n" + table + "\n";
}

inline PlanRequest request_of(const std::string& toml, int world_size, std::vector<std::string> overrides = {}) {
  PlanRequest request;
  request.config = [toml](const std::vector<std::string>& more) { return load_config_text(toml, "run.toml", more); };
  request.world_size = world_size;
  request.overrides = std::move(overrides);
  return request;
}
inline Plan plan_of(const std::string& strategy, int world_size, std::vector<std::string> overrides = {}) {
  return make_plan(request_of(strategy.empty() ? kRun : with_strategy("plugin = \"" + strategy + "\""), world_size,
                              std::move(overrides)));
}
inline std::string refusal_of(const std::string& strategy, int world_size, std::vector<std::string> overrides = {}) {
  try {
    plan_of(strategy, world_size, std::move(overrides));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}
inline uint64_t peak(const RankPlan& rank, PlanCategory category) { return rank.step.of(category).peak_bytes; }
inline std::map<std::string, CommCount> traffic(const Plan& plan) {
  std::map<std::string, CommCount> by_op;
  for (const CommCount& count : plan.ranks[0].traffic) by_op[count.group + " " + count.op] = count;
  return by_op;
}

}  // namespace chassis
