// The model that a configuration names: which plugin records it, and the config.json that the plugin was given.
#pragma once

#include <memory>
#include <string>

#include "host/config/config.hpp"
#include "host/program/compile.hpp"
#include "host/program/model_plugin.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

// Read before any plugin is loaded.
struct ModelSource {
  std::string member;       // "llama"; empty if the configuration names no model
  std::string config_text;  // JSON: of model.path/config.json, or [model] config
};
// Throws a config error if model.path holds no config.json, or one whose architecture no installed plugin knows.
ModelSource find_model(const Settings::Model& model, const PluginRegistry& registry);

class RunModel {
 public:
  // Hands the plugin its config. What a model ignores of [model] config becomes a problem of `config`; of a
  // config.json, a counted warning.
  RunModel(Config& config, RunPlugins& plugins, ModelSource source);

  const std::string& member() const { return source_.member; }
  const ModelPlugin& plugin() const { return plugin_; }
  // What the recording pass needs; borrows this.
  Recording recording(const Settings::Model& model) const;
  // The dtype of stored weights that config.json, or [model] config, gives; "float32" if it gives none.
  std::string stored_dtype(const Settings::Model& model) const;

 private:
  ModelSource source_;
  std::unique_ptr<Instance> instance_;
  ModelPlugin plugin_;
};

// Counts a warning if rows of so many positions are longer than the model's weights were made for.
void check_positions(const RunModel& model, int64_t num_positions, const std::string& what);

// SHA-256 of the member and the shapes of parameters: what makes two runs runs of the same model.
std::string model_hash(const RunModel& model, const ParameterTable& parameters);

}  // namespace chassis
