// An optimizer plugin in use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "host/plugin/instance.hpp"
#include "host/service/tensor_device.hpp"
#include "host/state/box.hpp"
#include "host/state/shape.hpp"

namespace chassis {

// A parameter as an optimizer plugin sees it.
class SteppedParameter {
 public:
  // `boxes` is empty before the parameter is divided.
  SteppedParameter(std::string name, uint32_t role, const Shape& global_shape, const std::vector<Box>& boxes = {});

  // Valid as long as this object.
  const chassis_optimizer_parameter_t* raw() const;

 private:
  std::string name_;
  std::vector<int64_t> global_shape_, boxes_;
  uint32_t num_boxes_ = 0;
  mutable chassis_optimizer_parameter_t raw_{};
  uint32_t role_;
};

bool has_blocks(const chassis_state_desc_t& desc);

class OptimizerPlugin {
 public:
  // The instance must outlive it. Throws a plugin error if it offers no optimizer, or lacks a required function.
  explicit OptimizerPlugin(const Instance& instance);
  // The table must outlive it, and have its required functions.
  OptimizerPlugin(const chassis_optimizer_t& table, chassis_instance_t* self, std::string label);

  // [control] The states as the plugin describes them; members that the plugin does not know are zero. `described`, if
  // not NULL, gets the address of each description.
  std::vector<chassis_state_desc_t> describe(const SteppedParameter& parameter,
                                             std::vector<const chassis_state_desc_t*>* described = nullptr) const;
  // [control] The same, but checked, because they decide what is allocated, divided and saved. Throws a plugin error.
  std::vector<chassis_state_desc_t> states(const SteppedParameter& parameter) const;
  // [control] The workspace of a step over these parameters, in bytes.
  uint64_t workspace_bytes(const std::vector<const chassis_optimizer_parameter_t*>& parameters) const;
  // [control] Throws the plugin's error if it cannot step tensors of the device.
  void require_support(Device device) const;
  // [step] Throws the plugin's error.
  void step(const chassis_optimizer_step_t& step) const;
  // True if its steps sum over parameters, and so over ranks.
  bool sums() const { return (table_->flags & CHASSIS_OPTIMIZER_SUMS) != 0; }

  const std::string& label() const { return label_; }

 private:
  void check_state(uint32_t index, const chassis_state_desc_t& desc) const;

  const chassis_optimizer_t* table_;
  chassis_instance_t* self_;
  std::string label_;
  const CallSite* site_;
};

}  // namespace chassis
