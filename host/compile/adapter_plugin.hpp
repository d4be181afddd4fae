// An adapter plugin in use: chassis.adapter/1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/kind/adapter.h"
#include "host/plugin/instance.hpp"

namespace chassis {

class AdapterPlugin {
 public:
  // The instance must outlive it. Throws a plugin error if it offers no adapter, or lacks a required function.
  explicit AdapterPlugin(Instance& instance);

  std::string id() const;
  // Must be called once, before all others. `config_json` is empty without [adapter] path.
  void configure(const std::string& config_json) const;
  bool trains(const chassis_adapter_parameter_t& parameter) const;
  void extend(const chassis_adapter_op_t& op, const chassis_adapter_builder_t& builder) const;
  void finish() const;
  // The text of adapter_config.json.
  std::string config(const std::string& base_path, const std::string& base_config_json) const;
  bool can_merge() const { return table_.merge != nullptr; }
  void merge(const chassis_adapter_merge_t& merge) const;
  bool has_files() const { return table_.files != nullptr; }
  void files(const chassis_adapter_files_t& files) const;

 private:
  Instance* instance_;
  chassis_adapter_t table_{};
};

}  // namespace chassis
