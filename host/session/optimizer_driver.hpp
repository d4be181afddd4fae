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
  std::string role;  // "exp_avg"
  uint32_t shape = CHASSIS_STATE_LIKE_PARAMETER;
  Descriptor descriptor;  // FQN "<parameter>.<role>"
  Tensor tensor;          // none until allocate()
};

class OptimizerDriver {
 public:
  // Asks the plugin for its schema, and says in the descriptors of trained parameters where that lets them be cut;
  // allocates nothing. Decay spares parameters of one dimension, as HF Trainer does.
  OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay);

  // States lie as their parameters do: again after these have been placed.
  void place();
  // Beside the shards. Throws if a state has another shape than its descriptor says.
  void allocate(Device device);
  // [control] A step over small tensors of the host, of as many dims as there are parameters of: what the plugin
  // refuses only then is known before a run.
  void try_step(double lr) const;
  // [step] `step` counts from 1; `grad_scale` multiplies every gradient first. Of shards on a meta device it takes and
  // gives back the memory that a step takes, and computes nothing.
  void step(int64_t step, double lr, double grad_scale);

  std::vector<OptimizerState>& states() { return states_; }
  const std::vector<Parameter*>& trained() const { return trained_; }
  const Instance& instance() const { return *instance_; }

 private:
  void read_schema();
  Descriptor describe(const Parameter& parameter, const chassis_state_desc_t& desc) const;
  int64_t block_padding(const Parameter& parameter) const;
  void call_step(int64_t step, double lr, double grad_scale, const std::vector<chassis_tensor_t>& params,
                 const std::vector<chassis_tensor_t>& grads, const std::vector<chassis_tensor_t>& states,
                 const std::vector<double>& weight_decay) const;
  // What the plugin asks for, for one step over these.
  Tensor workspace(const std::vector<chassis_tensor_t>& params, Device device) const;
  void step_on(Device device, int64_t step, double lr, double grad_scale);
  void rehearse_on(Device device) const;

  std::unique_ptr<Instance> instance_;
  const chassis_optimizer_t* table_;
  ParameterTable& parameters_;
  std::vector<chassis_state_desc_t> schema_;
  Granularity granularity_;  // the coarsest of the states
  std::vector<Parameter*> trained_;
  std::vector<double> weight_decay_;
  std::vector<OptimizerState> states_;  // one for each of the schema per trained parameter
};

// Of the gradients that this rank owns, in fp64; over all ranks they add up to the squared norm of the whole gradient.
// Gradients on a meta device take the memory of that, and add nothing.
double sum_of_squares(const std::vector<Parameter*>& parameters);

}  // namespace chassis
