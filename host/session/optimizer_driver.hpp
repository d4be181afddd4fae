// Steps all trained parameters with an optimizer plugin, in one call per device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "host/compile/parameters.hpp"
#include "host/execute/optimizer_plugin.hpp"
#include "host/plugin/instance.hpp"
#include "host/service/comm.hpp"
#include "host/service/tensor.hpp"
#include "host/session/matrix_exchange.hpp"
#include "host/session/optimizer_call.hpp"
#include "host/session/placed_optimizer.hpp"

namespace chassis {

class OptimizerDriver {
 public:
  // [control][all-ranks] Allocates the tensors of the states, where the shards of the parameters are, which are
  // allocated. Throws if the shape of a state differs from its descriptor. `device` is the one that the communicator
  // sends from. Both arguments outlive the driver; only one driver of an optimizer may exist at a time.
  OptimizerDriver(PlacedOptimizer& optimizer, Device device, Communicator& communicator);
  // The same for states whose tensors are there: see allocate_state().
  struct StatesExist {};
  OptimizerDriver(PlacedOptimizer& optimizer, Device device, Communicator& communicator, StatesExist exist);
  // [control] Creates the tensor of a state where the shard of its parameter is, or where the shard will be; `table` is
  // that of the parameter, and `device` as above.
  static void allocate_state(OptimizerState& state, const ParameterTable& table, Device device);
  // Frees the tensors. A state of which this rank stores nothing keeps its empty tensor, for the next driver: plans
  // make one for each rank.
  ~OptimizerDriver();
  OptimizerDriver(const OptimizerDriver&) = delete;
  OptimizerDriver& operator=(const OptimizerDriver&) = delete;

  // [step][all-ranks] `step` counts from 1; `grad_scale` multiplies every gradient first. For shards on a meta device
  // it allocates and frees the memory of a step, and computes nothing.
  void step(int64_t step, double lr, double grad_scale);

  std::vector<OptimizerState>& states() { return optimizer_.states(); }
  const std::vector<Parameter*>& trained() const { return optimizer_.schema().parameters(); }
  const Instance& instance() const { return optimizer_.instance(); }

 private:
  // The round of the same index in rounds().
  struct Round {
    std::unique_ptr<MatrixExchange> exchange;
    std::optional<size_t> own;  // the matrix that this rank steps, by its index in placed(); unset: there are fewer
  };
  // Adds a parameter to a call; the caller adds the states. `index` is that in placed().
  void add(OptimizerCall& call, size_t index, chassis_tensor_t param, chassis_tensor_t grad) const;
  // Throws the plugin's error if it cannot step the parameters where they are.
  void require_devices() const;
  // Throws if the plugin sums over parameters, and some of them are stepped in another memory.
  void refuse_mixed_offload() const;
  void find_boxes();
  void open_rounds();
  void allocate_states();
  int64_t block_padding(const Parameter& parameter) const;
  void step_on(Device device, int64_t step, double lr, double grad_scale);
  void rehearse_on(Device device) const;
  void step_divided_on(Device device, int64_t step, double lr, double grad_scale) const;
  const OptimizerPlugin& plugin() const { return optimizer_.schema().plugin(); }
  const ParameterTable& table() const { return optimizer_.schema().table(); }

  PlacedOptimizer& optimizer_;
  Communicator& communicator_;
  const Device device_;
  std::vector<SteppedParameter> facts_;  // in the order of placed()
  std::vector<Round> rounds_;
};

// The sum of squares of the gradients that this rank owns, in fp64. Its sum over all ranks is the squared norm of the
// whole gradient. Gradients on a meta device charge the memory of the computation, and add nothing.
double sum_of_squares(const std::vector<Parameter*>& parameters);

}  // namespace chassis
