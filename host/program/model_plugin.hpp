// A model plugin in use, of whichever version of the interface it offers.
#pragma once

#include <string>

#include "host/plugin/instance.hpp"
#include "host/program/disk_mapping.hpp"
#include "host/program/program.hpp"

namespace chassis {

class ModelPlugin {
 public:
  // The instance must outlive it. Throws a plugin error if it offers no model, or lacks a function that every one has.
  explicit ModelPlugin(Instance& instance);

  // Once, before all others.
  void configure(const std::string& config_json) const;
  // Why it refuses the config, in its words; empty if it does not.
  std::string configure_refusal(const std::string& config_json) const;
  // As record_program takes it; borrows this.
  chassis_status_t* record(const chassis_builder_2_t* builder) const;
  std::string config() const;
  // Proven for these parameters, which are the recorded program's.
  DiskMapping disk_mapping(const ParameterTable& parameters) const;
  // The longest sequence that the weights were made for; 0: it names none.
  int64_t max_positions() const;

 private:
  Instance* instance_;
  chassis_model_2_t table_{};
  const chassis_model_t* first_ = nullptr;  // of chassis.model/1, which records and maps in its own way
};

}  // namespace chassis
