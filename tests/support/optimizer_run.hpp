// Drives an optimizer plugin over tensors in plain memory.
#pragma once

#include <deque>
#include <random>

#include "chassis/kind/model.h"
#include "chassis/kind/optimizer.h"
#include "tests/support/fake_host.hpp"

namespace fake {

struct OptimizerSample {
  std::vector<int64_t> sizes;
  uint32_t role = CHASSIS_ROLE_WEIGHT;
};

// Sizes that leave tails in vector loops and cross the borders of parallel chunks.
inline const std::vector<OptimizerSample> kOptimizerSamples = {{{1}}, {{7}}, {{64}}, {{70001}}, {{384}}, {{33}}};

struct OptimizerRun {
  OptimizerRun(Host& host, const Instance& instance, const std::vector<OptimizerSample>& samples = kOptimizerSamples)
      : table(instance.interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID)), host(host), self(instance.self()) {
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    for (const OptimizerSample& sample : samples) {
      int64_t size = 1;
      for (const int64_t n : sample.sizes) size *= n;
      shapes.push_back(sample.sizes);
      boxes.emplace_back(sample.sizes.size(), 0);
      boxes.back().insert(boxes.back().end(), sample.sizes.begin(), sample.sizes.end());
      facts.push_back({sizeof(chassis_optimizer_parameter_t), sample.role, str("p"), shapes.back().data(),
                       static_cast<uint32_t>(sample.sizes.size()), 1, boxes.back().data()});
      params.push_back(host.make(CHASSIS_DTYPE_F32, sample.sizes));
      grads.push_back(host.make(CHASSIS_DTYPE_F32, sample.sizes));
      first_states.push_back(states.size());
      const auto described = describe(facts.back());
      for (const chassis_state_desc_t& state : described) states.push_back(make(state, sample.sizes, size));
      num_states.push_back(static_cast<uint32_t>(described.size()));
      for (int64_t i = 0; i < size; ++i) data(params.back())[i] = normal(random);
      decay.push_back(size % 2 == 0 ? 0.1 : 0.0);
    }
  }
  ~OptimizerRun() {
    for (auto* list : {&params, &grads, &states}) {
      for (chassis_tensor_t t : *list) delete tensor(t);
    }
  }

  template <typename T = float>
  static T* data(chassis_tensor_t t) {
    return static_cast<T*>(tensor(t)->view.data);
  }
  static int64_t count(chassis_tensor_t t) { return tensor(t)->view.num_elements; }
  // State j of parameter i.
  chassis_tensor_t state(size_t i, size_t j) const { return states[first_states[i] + j]; }

  std::vector<chassis_state_desc_t> describe(const chassis_optimizer_parameter_t& parameter) const {
    const chassis_state_desc_t* found = nullptr;
    uint32_t count = 0;
    host.check(table.states(self, &parameter, &found, &count));
    return {found, found + count};
  }

  // The gradients of a step are a function of its number.
  void fill_grads(int64_t step) {
    std::mt19937 random(static_cast<unsigned>(step));
    std::normal_distribution<float> normal;
    for (chassis_tensor_t grad : grads) {
      for (int64_t i = 0; i < count(grad); ++i) data(grad)[i] = normal(random);
    }
  }
  void step(int64_t number, double lr, double grad_scale) {
    std::vector<const chassis_optimizer_parameter_t*> parameters;
    for (const auto& fact : facts) parameters.push_back(&fact);
    std::vector<char> scratch;
    if (table.workspace_bytes != nullptr)
      scratch.resize(table.workspace_bytes(self, parameters.data(), static_cast<uint32_t>(parameters.size())));
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
                                          scratch.data(),
                                          scratch.size(),
                                          num_states.data(),
                                          parameters.data(),
                                          nullptr,
                                          nullptr,
                                          nullptr};
    host.check(table.step(self, &raw));
  }
  // All bytes of parameters and states.
  std::vector<char> bytes() const {
    std::vector<char> out;
    for (const auto* list : {&params, &states})
      for (chassis_tensor_t t : *list) out.insert(out.end(), tensor(t)->bytes.begin(), tensor(t)->bytes.end());
    return out;
  }

  const chassis_optimizer_t& table;
  Host& host;
  chassis_instance_t* self;
  std::deque<std::vector<int64_t>> shapes, boxes;
  std::deque<chassis_optimizer_parameter_t> facts;
  std::vector<uint32_t> num_states;
  std::vector<size_t> first_states;
  std::vector<chassis_tensor_t> params, grads, states;
  std::vector<double> decay;

 private:
  chassis_tensor_t make(const chassis_state_desc_t& state, const std::vector<int64_t>& sizes, int64_t size) const {
    const bool per_block = state.shape == CHASSIS_STATE_PER_BLOCK;
    const chassis_tensor_t out =
        host.make(state.dtype, per_block ? std::vector<int64_t>{(size + state.block - 1) / state.block} : sizes);
    for (int64_t i = 0; i < count(out); ++i) {
      if (state.dtype == CHASSIS_DTYPE_U8)
        data<uint8_t>(out)[i] = static_cast<uint8_t>(state.initial);
      else
        data(out)[i] = static_cast<float>(state.initial);
    }
    return out;
  }
};

}  // namespace fake
