// The arguments of one call of an optimizer plugin's step.
#pragma once

#include <cstdint>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "host/execute/optimizer_plugin.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// Tensors and facts must stay until the call is over.
struct OptimizerCall {
  std::vector<chassis_tensor_t> params, grads;
  std::vector<chassis_tensor_t> states;  // those of the first parameter, then of the second, and so on
  std::vector<const chassis_optimizer_parameter_t*> facts;
  std::vector<uint32_t> num_states;
  std::vector<double> weight_decay, lr_scale;
  std::vector<uint8_t> counts;  // whether sums over all ranks count this rank's elements, or those of a replica
  Communicator* communicator = nullptr;  // for sums; NULL: this rank has all parameters

  // The workspace that the plugin needs for the call; empty if it needs none.
  Tensor workspace(const OptimizerPlugin& plugin, Device device) const;
  // [step] Calls the plugin. `step`, `lr` and `grad_scale` as in OptimizerDriver::step().
  void run(const OptimizerPlugin& plugin, int64_t step, double lr, double grad_scale, Device device) const;
};

}  // namespace chassis
