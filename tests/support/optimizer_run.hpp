// Drives an optimizer plugin over tensors in plain memory.
#pragma once

#include <random>

#include "chassis/kind/optimizer.h"
#include "tests/support/fake_host.hpp"

namespace fake {

// Sizes that leave tails in vector loops and cross the borders of parallel chunks.
inline const std::vector<int64_t> kOptimizerSizes = {1, 7, 64, 70001, 384, 33};

struct OptimizerRun {
  OptimizerRun(Host& host, const Instance& instance)
      : table(instance.interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID)), host(host), self(instance.self()) {
    num_states = table.num_states(self);
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    for (int64_t size : kOptimizerSizes) {
      params.push_back(host.make(CHASSIS_DTYPE_F32, {size}));
      grads.push_back(host.make(CHASSIS_DTYPE_F32, {size}));
      for (uint32_t j = 0; j < num_states; ++j) states.push_back(host.make(CHASSIS_DTYPE_F32, {size}));
      for (int64_t i = 0; i < size; ++i) data(params.back())[i] = normal(random);
      decay.push_back(size % 2 == 0 ? 0.1 : 0.0);
    }
  }
  ~OptimizerRun() {
    for (auto* list : {&params, &grads, &states}) {
      for (chassis_tensor_t t : *list) delete tensor(t);
    }
  }

  static float* data(chassis_tensor_t t) { return static_cast<float*>(tensor(t)->view.data); }

  // The gradients of a step are a function of its number.
  void fill_grads(int64_t step) {
    std::mt19937 random(static_cast<unsigned>(step));
    std::normal_distribution<float> normal;
    for (chassis_tensor_t grad : grads) {
      for (int64_t i = 0; i < tensor(grad)->view.num_elements; ++i) data(grad)[i] = normal(random);
    }
  }
  void step(int64_t number, double lr, double grad_scale) {
    const chassis_optimizer_step_t raw = {sizeof raw,
                                          static_cast<uint32_t>(params.size()),
                                          number,
                                          lr,
                                          grad_scale,
                                          params.data(),
                                          grads.data(),
                                          states.data(),
                                          decay.data(),
                                          nullptr,
                                          nullptr,
                                          nullptr,
                                          0};
    host.check(table.step(self, &raw));
  }

  const chassis_optimizer_t& table;
  Host& host;
  chassis_instance_t* self;
  uint32_t num_states = 0;
  std::vector<chassis_tensor_t> params, grads, states;
  std::vector<double> decay;
};

}  // namespace fake
