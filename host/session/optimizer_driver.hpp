// Drives an optimizer plugin: owns its states, and steps all trained parameters in one call per device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "host/compile/parameters.hpp"
#include "host/execute/optimizer_plugin.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"
#include "host/session/matrix_exchange.hpp"

namespace chassis {

struct OptimizerState {
  Parameter* parameter = nullptr;
  std::string role;  // "exp_avg"
  uint32_t shape = CHASSIS_STATE_LIKE_PARAMETER;
  double initial = 0.0;   // value of every element before the first step
  Component component;    // a state with a value for each block, as a component of the parameter
  Descriptor descriptor;  // FQN "<parameter>.<role>"
  Tensor tensor;          // empty until allocate(); one-dimensional where it has a value for each block
};

class OptimizerDriver {
 public:
  // Asks the plugin for the states of each trained parameter, and sets in its descriptor where it may be divided;
  // allocates nothing. Parameters of one dimension get no weight decay, as in HF Trainer.
  OptimizerDriver(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay);

  // Places states like their parameters. If a state needs a whole matrix that the layout pass divided, one of the ranks
  // that have the parts owns it. Call it again after the parameters are placed.
  void place();
  // For plans: frees the states. Afterwards, place the parameters for another rank, then call place_rank() and
  // allocate(). A state of which this rank stores nothing keeps its empty tensor.
  void release();
  void place_rank();
  // [control][all-ranks] Allocates the states where the shards are. Throws if the shape of a state differs from its
  // descriptor. `device` is the one that the communicator sends from.
  void allocate(Device device, Communicator& communicator);
  // [control] Makes one step over small tensors on the CPU, one for each role and number of dims that a trained
  // parameter has. Shows before a run what the plugin refuses only in a step.
  void try_step(double lr) const;
  // [step][all-ranks] `step` counts from 1; `grad_scale` multiplies every gradient first. For shards on a meta device
  // it allocates and frees the memory of a step, and computes nothing.
  void step(int64_t step, double lr, double grad_scale);

  std::vector<OptimizerState>& states() { return states_; }
  const std::vector<Parameter*>& trained() const { return trained_parameters_; }
  const Instance& instance() const { return *instance_; }

 private:
  using States = std::vector<chassis_state_desc_t>;
  // A trained parameter, with its arguments for a step.
  struct Trained {
    Parameter* parameter = nullptr;
    double weight_decay = 0.0;
    States schema;
    size_t first_state = 0;  // in states_
    SteppedParameter facts;
    int owner = -1;  // coordinate, along the axis that divides it, that steps all of it; -1: every rank steps its part
  };
  // Matrices that the ranks along an axis step at the same time: rank i steps the i-th.
  struct Round {
    std::string axis;
    std::vector<const Trained*> matrices;
    std::unique_ptr<MatrixExchange> exchange;  // once shards are allocated
    const Trained* own = nullptr;              // the matrix that this rank steps; NULL if there are fewer
  };
  // The tensors of a step.
  struct Step {
    std::vector<chassis_tensor_t> params, grads, states;
    std::vector<const chassis_optimizer_parameter_t*> facts;
    std::vector<uint32_t> num_states;
    std::vector<double> weight_decay, lr_scale;
    std::vector<uint8_t> counts;  // whether sums over all ranks count this rank's elements, or those of a replica
    Communicator* communicator = nullptr;  // for sums; NULL: this rank has all parameters

    // The caller adds the states.
    void add(const Trained& trained, chassis_tensor_t param, chassis_tensor_t grad);
  };

  void choose_owners();
  static Descriptor stepped_descriptor(const Trained& trained);  // as its states are placed
  void take_boxes(Trained& trained, const Descriptor& stepped) const;
  static Descriptor describe(const std::string& name, const Descriptor& whole, const chassis_state_desc_t& desc);
  int64_t block_padding(const Parameter& parameter) const;
  // Throws if the plugin sums over parameters, and its step would need more than one call on a rank.
  void refuse_several_calls() const;
  void call_step(int64_t number, double lr, double grad_scale, Device device, const Step& step) const;
  // The workspace that the plugin needs for a step.
  Tensor workspace(const Step& step, Device device) const;
  void step_on(Device device, int64_t step, double lr, double grad_scale);
  void rehearse_on(Device device) const;
  void step_divided_on(Device device, int64_t step, double lr, double grad_scale) const;

  std::unique_ptr<Instance> instance_;
  OptimizerPlugin plugin_;
  ParameterTable& parameters_;
  std::vector<Trained> trained_;
  std::vector<Parameter*> trained_parameters_;  // those of trained_
  std::vector<OptimizerState> states_;          // those of all trained parameters
  std::vector<Round> divided_;
  Communicator* communicator_ = nullptr;  // from allocate() on
  Device device_;                         // likewise
};

// The sum of squares of the gradients that this rank owns, in fp64. Its sum over all ranks is the squared norm of the
// whole gradient. Gradients on a meta device charge the memory of the computation, and add nothing.
double sum_of_squares(const std::vector<Parameter*>& parameters);

}  // namespace chassis
