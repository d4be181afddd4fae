// The model that a configuration names: the plugin that records it, and the config.json that the plugin gets.
#pragma once

#include <memory>
#include <string>

#include "host/config/config.hpp"
#include "host/program/compile.hpp"
#include "host/program/model_plugin.hpp"
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

// Counts a warning if `num_positions` is more than the model's weights were made for. `what` names the setting.
void check_positions(const RunModel& model, int64_t num_positions, const std::string& what);

// What no run can train or sample from, with the block and the output or parameter: a loss that is no scalar, no loss
// or no logits, or an init_std that is negative or not finite. Empty if there is none.
std::string program_fault(const Program& program);

// SHA-256 of the member, without its version, and the shapes of its parameters: equal if two runs train the same model.
std::string model_hash(const RunModel& model, const ParameterTable& parameters);

}  // namespace chassis
