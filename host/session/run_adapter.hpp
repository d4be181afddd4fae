// The adapter that a configuration names, and the pass that applies it to the model.
#pragma once

#include <memory>
#include <string>

#include "host/compile/adapter_pass.hpp"
#include "host/config/settings.hpp"
#include "host/session/run_model.hpp"
#include "host/session/run_plugins.hpp"

namespace chassis {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";

class RunAdapter {
 public:
  // Hands the plugin adapter_config.json of [adapter] path, if there is one. `model` outlives it. Throws a config error
  // if the path has no such file.
  RunAdapter(const Settings::Adapter& settings, RunPlugins& plugins, const RunModel& model);
  RunAdapter(const RunAdapter&) = delete;
  RunAdapter& operator=(const RunAdapter&) = delete;

  const std::string& member() const { return member_; }
  const AdapterPlugin& plugin() const { return plugin_; }
  const AdapterPass& pass() const { return pass_; }

 private:
  std::string member_;
  std::unique_ptr<Instance> instance_;
  AdapterPlugin plugin_;
  AdapterPass pass_;
};

// How the model's files name the parameters of its recorded program.
FileNames file_names(const ModelPlugin& model, const Program& recorded);
FileNames file_names(const RunModel& model, const Program& recorded);

}  // namespace chassis
