// A model plugin in use.
#pragma once

#include <string>

#include "host/compile/disk_layout.hpp"
#include "host/graph/program.hpp"
#include "host/plugin/instance.hpp"

namespace chassis {

class ModelPlugin {
 public:
  // The instance must outlive it. Throws a plugin error if it offers no model, or lacks a required function.
  explicit ModelPlugin(Instance& instance);

  // Must be called once, before all others.
  void configure(const std::string& config_json) const;
  // The reason that the plugin gives for refusing the config; empty if it accepts it.
  std::string configure_refusal(const std::string& config_json) const;
  // For record_program.
  chassis_status_t* record(const chassis_builder_t* builder) const;
  std::string config() const;
  // Verified for `parameters`, which must be the recorded program's.
  DiskLayout disk_mapping(const ParameterTable& parameters) const;
  // The longest sequence that the weights were trained for; 0: not declared.
  int64_t max_positions() const;

 private:
  Instance* instance_;
  chassis_model_t table_;
};

}  // namespace chassis
