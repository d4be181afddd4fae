// An optimizer before its states are allocated. Each type is made from the one before it: OptimizerSchema knows which
// states the plugin wants; PlacedOptimizer knows where they are; OptimizerDriver (optimizer_driver.hpp) has their
// tensors, and steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chassis/kind/optimizer.h"
#include "host/compile/parameters.hpp"
#include "host/execute/optimizer_plugin.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/tensor.hpp"
#include "host/session/matrix_rounds.hpp"

namespace chassis {

class OptimizerSchema {
 public:
  // Asks the plugin for the states of each trained parameter, and sets in its descriptor where it may be divided.
  // Parameters of one dimension get no weight decay, as in HF Trainer. Throws a config error if the layout pass has
  // divided what the optimizer needs whole. `parameters` outlives it.
  OptimizerSchema(std::unique_ptr<Instance> instance, ParameterTable& parameters, double weight_decay);

  struct Trained {
    Parameter* parameter = nullptr;
    double weight_decay = 0.0;
    std::vector<chassis_state_desc_t> states;
  };
  const std::vector<Trained>& trained() const { return trained_; }
  const std::vector<Parameter*>& parameters() const { return trained_parameters_; }  // those of trained()
  const ParameterTable& table() const { return *table_; }

  const Instance& instance() const { return *instance_; }
  const OptimizerPlugin& plugin() const { return plugin_; }
  // [control] Makes one step over small tensors on the CPU, one for each role and number of dims that a trained
  // parameter has. Shows before a run what the plugin refuses only in a step.
  void try_step(double lr) const;

 private:
  std::unique_ptr<Instance> instance_;
  OptimizerPlugin plugin_;
  ParameterTable* table_;
  std::vector<Trained> trained_;
  std::vector<Parameter*> trained_parameters_;
};

struct OptimizerState {
  Parameter* parameter = nullptr;
  std::string role;  // "exp_avg"
  uint32_t shape = CHASSIS_STATE_LIKE_PARAMETER;
  double initial = 0.0;   // value of every element before the first step
  Component component;    // a state with a value for each block, as a component of the parameter
  Descriptor descriptor;  // FQN "<parameter>.<role>"
  Tensor tensor;          // empty without a driver; one-dimensional where it has a value for each block
};

class PlacedOptimizer {
 public:
  // Places states like their parameters, which are placed. If a state needs a whole matrix that the layout pass
  // divided, one of the ranks that have the parts owns it. The owners are the same on all ranks.
  explicit PlacedOptimizer(OptimizerSchema schema);
  PlacedOptimizer(const PlacedOptimizer&) = delete;
  PlacedOptimizer& operator=(const PlacedOptimizer&) = delete;

  const OptimizerSchema& schema() const { return schema_; }
  const Instance& instance() const { return schema_.instance(); }
  std::vector<OptimizerState>& states() { return states_; }  // those of all trained parameters
  const std::vector<OptimizerState>& states() const { return states_; }

  // A trained parameter with its states.
  struct Placed {
    const OptimizerSchema::Trained* trained = nullptr;
    size_t first_state = 0;  // in states()
    int owner = -1;  // coordinate, along the axis that divides it, that steps all of it; -1: every rank steps its part

    const Parameter& parameter() const { return *trained->parameter; }
    // The parameter's descriptor as its states are placed.
    Descriptor descriptor() const;
  };
  const std::vector<Placed>& placed() const { return placed_; }
  const std::vector<MatrixRound>& rounds() const { return rounds_; }

 private:
  OptimizerSchema schema_;
  std::vector<MatrixRound> rounds_;
  std::vector<Placed> placed_;  // in the order of schema_.trained()
  std::vector<OptimizerState> states_;
};

}  // namespace chassis
