// An optimizer plugin in use: chassis.optimizer/2, or chassis.optimizer/1 for plugins from before ABI 0.6.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "chassis/kind/optimizer_1.h"
#include "host/plugin/instance.hpp"
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
  // One of the tables is NULL.
  OptimizerPlugin(const chassis_optimizer_t* first, const chassis_optimizer_2_t* second, chassis_instance_t* self,
                  std::string label);

  // [control] The states as the plugin describes them; members that the plugin does not know are zero. `described`, if
  // not NULL, gets the address of each description.
  std::vector<chassis_state_desc_t> describe(const SteppedParameter& parameter,
                                             std::vector<const chassis_state_desc_t*>* described = nullptr) const;
  // [control] The same, but checked, because they decide what is allocated, divided and saved. Throws a plugin error.
  std::vector<chassis_state_desc_t> states(const SteppedParameter& parameter) const;
  // [control] The workspace of a step over these parameters; `num_elements` is this rank's number of elements of each.
  uint64_t workspace_bytes(const std::vector<const chassis_optimizer_parameter_t*>& parameters,
                           const std::vector<int64_t>& num_elements) const;
  // [step] Throws the plugin's error.
  void step(const chassis_optimizer_step_t& step) const;
  // True if a step takes a scale on the device; version 1 does not.
  bool takes_device_scale() const { return second_ != nullptr; }
  // True if its steps sum over parameters, and so over ranks.
  bool sums() const { return sums_; }

  const std::string& label() const { return label_; }

 private:
  void check_state(uint32_t index, const chassis_state_desc_t& desc) const;

  const chassis_optimizer_t* first_;
  const chassis_optimizer_2_t* second_;
  chassis_instance_t* self_;
  std::string label_;
  const CallSite* site_;
  bool sums_ = false;
};

}  // namespace chassis
