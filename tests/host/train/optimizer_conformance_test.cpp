// What an optimizer must keep finds each fault of one that does not.
#include "host/train/optimizer_conformance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "host/plugin/status.hpp"
#include "host/service/tensor.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

// Gradient descent, one element at a time, in a table of its own; `update` is what is bent.
class ToyOptimizer {
 public:
  using Update = std::function<float(float param, float grad, float& state, double lr)>;

  explicit ToyOptimizer(Update update) : update_(std::move(update)) {
    instance_.impl = this;
    state_ = {sizeof state_, CHASSIS_DTYPE_F32, str_of("momentum"), CHASSIS_STATE_LIKE_PARAMETER, CHASSIS_GRANULARITY_ELEMENT, 0};
    table_.struct_size = sizeof table_;
    table_.num_states = [](chassis_instance*) -> uint32_t { return 1; };
    table_.state = [](chassis_instance* self, uint32_t) -> const chassis_state_desc_t* { return &of(self).state_; };
    table_.step = [](chassis_instance* self, const chassis_optimizer_step_t* step) {
      return guarded([&] { of(self).step(*step); });
    };
  }
  chassis_state_desc_t& state() { return state_; }
  std::string failures() {
    std::string text;
    for (const std::string& failure : optimizer_failures(table_, &instance_, "toy")) text += failure + "\n";
    return text;
  }

 private:
  static ToyOptimizer& of(chassis_instance* self) { return *static_cast<ToyOptimizer*>(self->impl); }

  void step(const chassis_optimizer_step_t& step) {
    for (uint32_t i = 0; i < step.num_tensors; ++i) {
      const Tensor param = Tensor::share(step.params[i]), grad = Tensor::share(step.grads[i]), state = Tensor::share(step.states[i]);
      const bool scalar = state_.shape == CHASSIS_STATE_SCALAR;
      for (int64_t e = 0; e < param.num_elements(); ++e) {
        float& p = param.data_as<float>()[e];
        const float decayed = p * static_cast<float>(1 - step.lr * step.weight_decay[i]);
        p = update_(decayed, grad.data_as<float>()[e] * static_cast<float>(step.grad_scale),
                    state.data_as<float>()[scalar ? 0 : e], step.lr);
      }
    }
  }

  Update update_;
  chassis_state_desc_t state_{};
  chassis_optimizer_t table_{};
  chassis_instance_t instance_{};
};

float descend(float param, float grad, float& momentum, double lr) {
  momentum = 0.9f * momentum + grad;
  return param - static_cast<float>(lr) * momentum;
}

TEST(OptimizerConformance, OurOptimizersPass) {
  test::LoadedPlugins plugins;
  for (const char* id : {"adamw", "sgd"}) {
    const auto instance = plugins.make("optimizer", id);
    const auto& table = instance->interface<chassis_optimizer_t>(CHASSIS_OPTIMIZER_ID);
    EXPECT_EQ(optimizer_failures(table, instance->get(), id), std::vector<std::string>());
  }
  EXPECT_EQ(ToyOptimizer(descend).failures(), "");
}

TEST(OptimizerConformance, FindsStatesThatCanNotBeKept) {
  ToyOptimizer toy(descend);
  toy.state().role = str_of("../momentum");
  EXPECT_EQ(toy.failures(), "state 0 has the role '../momentum', expected lower-case letters, digits and '_'\n");
  toy.state().role = str_of("momentum");
  toy.state().dtype = 99;
  EXPECT_EQ(toy.failures(), "state 'momentum' has the unknown dtype 99\n");
  toy.state().dtype = CHASSIS_DTYPE_F32;
  toy.state().granularity = CHASSIS_GRANULARITY_BLOCK;
  EXPECT_EQ(toy.failures(), "state 'momentum' is cut in blocks of 0 elements, expected at least 1\n");
  toy.state().block = 32;
  EXPECT_EQ(toy.failures(), "");
}

TEST(OptimizerConformance, FindsParametersThatMoveByThemselvesOrNotAtAll) {
  ToyOptimizer drifting([](float p, float g, float&, double lr) { return p - static_cast<float>(lr) * (g + 1.0f); });
  EXPECT_NE(drifting.failures().find("without gradients and decay element 0 of parameter 0 is "), std::string::npos)
      << drifting.failures();
  ToyOptimizer broken([](float, float, float&, double) { return NAN; });
  EXPECT_NE(broken.failures().find("three steps leave values that are not finite"), std::string::npos) << broken.failures();
  ToyOptimizer idle([](float p, float, float&, double) { return p; });
  EXPECT_NE(idle.failures().find("do not move parameter 0 of 77 elements"), std::string::npos) << idle.failures();
}

TEST(OptimizerConformance, FindsAMemoryOfItsOwn) {
  int calls = 0;
  ToyOptimizer counting([&](float p, float g, float&, double lr) { return p - static_cast<float>(lr) * g * (++calls % 7 == 0 ? 1.5f : 1.0f); });
  EXPECT_NE(counting.failures().find("other bits with the same two steps again: element "), std::string::npos)
      << counting.failures();
}

TEST(OptimizerConformance, FindsAnUpdateThatIsNotElementwise) {
  // A state for the whole parameter that its elements change: the pieces of a parameter have one each.
  ToyOptimizer normed([](float p, float g, float& sum, double lr) {
    sum += g * g;
    return p - static_cast<float>(lr) * g / std::sqrt(1.0f + sum);
  });
  normed.state().shape = CHASSIS_STATE_SCALAR;
  EXPECT_NE(normed.failures().find("a parameter cut at element 113 steps otherwise than the whole"), std::string::npos)
      << normed.failures();
  normed.state().granularity = CHASSIS_GRANULARITY_MATRIX;
  EXPECT_EQ(normed.failures(), "") << "it says so: parameters are not cut";
}

}  // namespace
}  // namespace chassis
