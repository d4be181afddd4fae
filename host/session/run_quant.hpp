// The quantization that a configuration names, and the pass that applies it to the model.
#pragma once

#include <memory>
#include <string>

#include "host/compile/quant_pass.hpp"
#include "host/config/settings.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

class RunQuant {
 public:
  // Hands the plugin "quantization_config" of the model's config.json, if there is one. `model` outlives it.
  RunQuant(const PluginTable& settings, RunPlugins& plugins, const RunModel& model);
  RunQuant(const RunQuant&) = delete;
  RunQuant& operator=(const RunQuant&) = delete;

  const QuantPlugin& plugin() const { return plugin_; }
  const QuantPass& pass() const { return pass_; }
  // Computes the ops that read quantized parameters.
  OpsProvider provider() const { return ops_provider(*instance_); }
  // The model's files hold components.
  bool is_stored() const { return is_stored_; }

 private:
  std::unique_ptr<Instance> instance_;
  QuantPlugin plugin_;
  QuantPass pass_;
  bool is_stored_ = false;
};

}  // namespace chassis
