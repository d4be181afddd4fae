// Drives an optimizer plugin: owns the states it asks for, and steps all trained parameters at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "host/plugin/instance.hpp"
#include "host/program/parameters.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

struct OptimizerState {
  Parameter* parameter = nullptr;
  std::string role;       // "exp_avg"
  Descriptor descriptor;  // FQN "<parameter>.<role>"
  Tensor tensor;          // none until allocate()
};

class OptimizerDriver {
 public:
  // Asks the plugin for its schema; allocates nothing. Decay spares parameters of one dimension, as HF Trainer does.
  OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay);

  // Beside the shards.
  void allocate(Device device);
  // [step] `step` counts from 1; `grad_scale` multiplies every gradient first.
  void step(int64_t step, double lr, double grad_scale);

  std::vector<OptimizerState>& states() { return states_; }
  const std::vector<Parameter*>& trained() const { return trained_; }
  const Instance& instance() const { return *instance_; }

 private:
  void step_on(Device device, int64_t step, double lr, double grad_scale);

  std::unique_ptr<Instance> instance_;
  const chassis_optimizer_t* table_;
  std::vector<Parameter*> trained_;
  std::vector<double> weight_decay_;
  std::vector<OptimizerState> states_;  // num_states per trained parameter
  uint32_t num_states_ = 0;
};

// Of the gradients that this rank owns, in fp64; over all ranks they add up to the squared norm of the whole gradient.
double sum_of_squares(const std::vector<Parameter*>& parameters);

}  // namespace chassis
