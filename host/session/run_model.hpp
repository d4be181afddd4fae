// The model that a configuration names: the plugin that records it, and the config.json that the plugin gets.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "host/compile/compile.hpp"
#include "host/compile/model_plugin.hpp"
#include "host/config/config.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// Read before the plugin is loaded.
struct ModelSource {
  std::string member;       // "llama"; empty if the configuration names no model
  std::string config_text;  // JSON: of model.path/config.json, or [model] config
};
// Throws a config error if model.path has no config.json, or if no installed plugin knows its architecture.
ModelSource find_model(const Settings::Model& model, const PluginRegistry& registry);

class RunModel {
 public:
  // Hands the plugin its config. A key that the model ignores is a problem of `config` if it stands in [model] config,
  // and a counted warning if it stands in a config.json.
  RunModel(Config& config, RunPlugins& plugins, ModelSource source);

  const std::string& member() const { return source_.member; }
  const ModelPlugin& plugin() const { return plugin_; }
  // The architectures of config.json that the plugin reads, as its manifest lists them.
  const std::vector<std::string>& architectures() const { return instance_->library().manifest().architectures; }
  // config.json, or [model] config.
  const std::string& config_text() const { return source_.config_text; }
  // The input of the recording pass; refers to this object.
  Recording recording(const Settings::Model& model, ConfigUse use) const;
  // The dtype of stored weights in config.json or [model] config; "float32" if it names none.
  std::string stored_dtype(const Settings::Model& model) const;

 private:
  ModelSource source_;
  std::unique_ptr<Instance> instance_;
  ModelPlugin plugin_;
};

// The number of positions for which the program has rows in a table, such as that of GPT-2; 0: it computes them.
int64_t num_table_positions(const Program& program);
// Counts a warning if train.seq_len is more than the model's weights were made for. Throws a config error if the
// model's positions are a table with fewer rows.
void check_seq_len(const RunModel& model, const Program& program, const Setting<int64_t>& seq_len);
// The same for a prompt and its answer. Returns how many tokens of the answer the positions suffice for, at most
// `max_new_tokens`; throws a config error if the prompt alone is too long for the table.
int64_t check_answer_length(const RunModel& model, const Program& program, int64_t num_prompt_tokens,
                            int64_t max_new_tokens);

// A fault of a recorded model with which no run can train or sample, with the block and the output or parameter: a loss
// that the host adds, a loss of its own that is not a scalar in float32, neither logits nor scores, or an init_std that
// is negative or not finite. Empty if there is none.
std::string program_fault(const Program& recorded);

// SHA-256 of the member, without its version, and the shapes of its parameters: equal if two runs train the same model.
std::string model_hash(const RunModel& model, const ParameterTable& parameters);

}  // namespace chassis
