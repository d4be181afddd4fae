// The conformance tests of optimizers find each fault of a faulty optimizer.
#include "host/conformance/optimizer_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "host/plugin/status.hpp"
#include "host/service/guarded_memory.hpp"
#include "host/service/memory.hpp"
#include "host/service/tensor.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

// Gradient descent, one element at a time. `update` or `fault` makes it faulty.
class ToyOptimizer {
 public:
  using Update = std::function<float(float param, float grad, float& state, double lr)>;

  explicit ToyOptimizer(Update update, std::string fault = "") : update_(std::move(update)), fault_(std::move(fault)) {
    instance_.impl = this;
    state_ = {sizeof state_,
              CHASSIS_DTYPE_F32,
              str_of("momentum"),
              CHASSIS_STATE_LIKE_PARAMETER,
              CHASSIS_GRANULARITY_ELEMENT,
              0,
              0.0};
    table_.struct_size = sizeof table_;
    table_.states = [](chassis_instance* self, const chassis_optimizer_parameter_t*,
                       const chassis_state_desc_t** states, uint32_t* num_states) -> chassis_status_t* {
      *states = &of(self).state_;
      *num_states = 1;
      return nullptr;
    };
    table_.step = [](chassis_instance* self, const chassis_optimizer_step_t* step) {
      return guarded([&] { of(self).step(*step); });
    };
  }
  chassis_state_desc_t& state() { return state_; }
  std::string failures() {
    std::string text;
    const OptimizerPlugin plugin(table_, &instance_, "toy");
    ToyOptimizer other(update_, fault_);
    other.state_ = state_;
    const OptimizerPlugin another(other.table_, &other.instance_, "toy");
    for (const std::string& failure : optimizer_failures(plugin, another)) text += failure + "\n";
    return text;
  }

 private:
  static ToyOptimizer& of(chassis_instance* self) { return *static_cast<ToyOptimizer*>(self->impl); }

  void step(const chassis_optimizer_step_t& step) {
    saw_first_ |= step.step == 1;
    double squares = 0, grad_scale = step.grad_scale;
    if (step.device_grad_scale != nullptr) grad_scale *= *Tensor::share(step.device_grad_scale).data_as<float>();
    for (uint32_t i = 0; is("sums its tensors") && i < step.num_tensors; ++i)
      squares += Tensor::share(step.grads[i]).sum_of_squares() * grad_scale * grad_scale;
    const auto length = static_cast<float>(is("sums its tensors") ? std::sqrt(squares) + 1e-12 : 1.0);
    for (uint32_t i = 0; i < step.num_tensors; ++i) {
      const Tensor param = Tensor::share(step.params[i]), grad = Tensor::share(step.grads[i]),
                   state = Tensor::share(step.states[i]);
      const bool scalar = state_.shape == CHASSIS_STATE_SCALAR;
      const double lr = step.lr * (step.lr_scale != nullptr && !is("ignores lr_scale") ? step.lr_scale[i] : 1.0);
      const double decay = is("no decay") ? 0.0 : step.weight_decay[is("first decay for all") ? 0 : i];
      const bool doubles = is("keeps what no state has") && !saw_first_, is_in_gradient = is("decay in the gradient"),
                 has_tail = is("other tail"), writes_behind = is("writes behind");
      const auto kept = static_cast<float>(1 - (is("decay without lr") ? 0.01 : lr) * decay);
      const int64_t count = param.num_elements();
      auto* const params = param.data_as<float>();
      const auto* const grads = grad.data_as<float>();
      auto* const states = state.data_as<float>();
      for (int64_t e = 0; e < count; ++e) {
        float& p = params[e];
        float g = grads[e] * static_cast<float>(grad_scale) / length;
        if (doubles) g *= 2;
        if (is_in_gradient)
          g += static_cast<float>(decay) * p;
        else
          p *= kept;
        p = update_(p, g, states[scalar ? 0 : e], lr);
        if (has_tail && e >= count / 8 * 8) p = std::nextafter(p, 100.0f);
        if (writes_behind && e + 1 == count) (&p)[1] = 0.0f;
      }
      if (count == 0) continue;
      if (is("leaks")) leaked_.emplace_back(1 << 19);
      if (is("starts threads"))
        threads_.emplace_back([](std::stop_token end) {
          while (!end.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        });
    }
  }

  bool is(std::string_view fault) const { return fault_ == fault; }

  Update update_;
  const std::string fault_;
  chassis_state_desc_t state_{};
  chassis_optimizer_t table_{};
  chassis_instance_t instance_{};
  bool saw_first_ = false;
  std::vector<std::vector<char>> leaked_;
  std::vector<std::jthread> threads_;
};

float gradient_descent(float param, float grad, float& momentum, double lr) {
  momentum = 0.9f * momentum + grad;
  return param - static_cast<float>(lr) * momentum;
}

TEST(OptimizerConformance, OurOptimizersPass) {
  test::LoadedPlugins plugins{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  for (const char* id : {"adamw", "sgd", "adamw8bit", "lion", "muon", "schedule_free"}) {
    const auto instance = plugins.make("optimizer", id), another = plugins.make("optimizer", id);
    EXPECT_EQ(optimizer_failures(OptimizerPlugin(*instance), OptimizerPlugin(*another)), std::vector<std::string>())
        << id;
  }
  EXPECT_EQ(ToyOptimizer(gradient_descent).failures(), "");
}

// The mesh decides which parameters a rank steps, so only the host can sum over all of them.
TEST(OptimizerConformance, FindsASumOverTheTensorsOfAStep) {
  EXPECT_HAS(ToyOptimizer(gradient_descent, "sums its tensors").failures(),
             "so a sum over them needs sum_over_parameters");
  test::LoadedPlugins plugins({CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR});
  const auto instance = plugins.make("optimizer", "normalised"), another = plugins.make("optimizer", "normalised");
  EXPECT_EQ(optimizer_failures(OptimizerPlugin(*instance), OptimizerPlugin(*another)), std::vector<std::string>());
}

TEST(OptimizerConformance, FindsStatesThatCannotBeSaved) {
  ToyOptimizer toy(gradient_descent);
  toy.state().role = str_of("../momentum");
  EXPECT_EQ(toy.failures(), "toy: state 0 has the role '../momentum', expected letters, digits and '_'\n");
  toy.state().role = str_of("momentum");
  toy.state().dtype = 99;
  EXPECT_EQ(toy.failures(), "toy: state 0 ('momentum') has dtype 99, which is not a dtype of the ABI\n");
  toy.state().dtype = CHASSIS_DTYPE_I8;
  toy.state().initial = 1000.5;
  EXPECT_EQ(toy.failures(), "state 'momentum' of i8 starts at 1000.5, which is outside of it\n");
  toy.state().dtype = CHASSIS_DTYPE_F32;
  toy.state().initial = 1e-46;
  EXPECT_HAS(toy.failures(), "state 'momentum' of f32 starts at 1e-46, which is 0 in this dtype\n");
  toy.state().initial = 1e-6;  // is rounded
  EXPECT_EQ(toy.failures().find("starts at"), std::string::npos);
  toy.state().initial = 0;
  toy.state().granularity = CHASSIS_GRANULARITY_BLOCK;
  EXPECT_EQ(toy.failures(), "toy: state 0 ('momentum') is cut in blocks of 0 elements, expected at least 1\n");
  for (const int64_t block : {32, 1 << 18}) {
    toy.state().block = block;
    EXPECT_EQ(toy.failures(), "") << block;
  }
  toy.state().struct_size = 0;
  EXPECT_EQ(toy.failures(), "toy: the description of state 0 has 0 bytes, expected at least " +
                                std::to_string(CHASSIS_STATE_DESC_V1_SIZE) + "\n");
}

TEST(OptimizerConformance, FindsStepsThatLeakMemoryOrThreads) {
  EXPECT_HAS(ToyOptimizer(gradient_descent, "leaks").failures(), "30 steps left 78");
  EXPECT_HAS(ToyOptimizer(gradient_descent, "starts threads").failures(),
             "30 steps left 150 threads running, expected none");
}

TEST(OptimizerConformance, FindsParametersThatMoveWithoutGradientsOrDoNotMove) {
  ToyOptimizer drifting([](float p, float g, float&, double lr) { return p - static_cast<float>(lr) * (g + 1.0f); });
  EXPECT_NE(drifting.failures().find("without gradients and decay: element 0 of parameter 0 is "), std::string::npos)
      << drifting.failures();
  ToyOptimizer broken([](float, float, float&, double) { return NAN; });
  EXPECT_NE(broken.failures().find("three steps leave values that are not finite"), std::string::npos)
      << broken.failures();
  ToyOptimizer idle([](float p, float, float&, double) { return p; });
  EXPECT_NE(idle.failures().find("do not move parameter 0 of 77 elements"), std::string::npos) << idle.failures();
}

TEST(OptimizerConformance, FindsWrongWeightDecay) {
  const auto failures = [](const std::string& fault) { return ToyOptimizer(gradient_descent, fault).failures(); };
  EXPECT_NE(
      failures("no decay").find("weight decay 0.1 at lr 0.01 without gradients moves element 0 of parameter 0 from "),
      std::string::npos)
      << failures("no decay");
  EXPECT_NE(failures("first decay for all").find("weight decay 0 at lr 0.01"), std::string::npos);
  EXPECT_NE(failures("decay without lr").find("at lr 0: element 0 of parameter 0 is "), std::string::npos);
  // Like Adam with decay in the gradient: dividing by the second moment removes the decay again.
  const auto adaptive = [](float p, float g, float&, double lr) {
    return p - static_cast<float>(lr) * g / (std::abs(g) + 1e-8f);
  };
  EXPECT_EQ(ToyOptimizer(adaptive).failures(), "");
  EXPECT_NE(ToyOptimizer(adaptive, "decay in the gradient")
                .failures()
                .find("weight decay 0.1 at lr 0.01 without gradients moves"),
            std::string::npos);
}

TEST(OptimizerConformance, FindsAnIgnoredLrScale) {
  ToyOptimizer ignoring(gradient_descent, "ignores lr_scale");
  EXPECT_NE(ignoring.failures().find("lr_scale 2 gives different bits from lr times as much"), std::string::npos)
      << ignoring.failures();
}

TEST(OptimizerConformance, FindsAnUpdateThatDependsOnTheCut) {
  // Like a kernel that treats the elements after its last full vector differently.
  ToyOptimizer vectors(gradient_descent, "other tail");
  EXPECT_NE(vectors.failures().find("a parameter cut at element "), std::string::npos) << vectors.failures();
}

TEST(OptimizerConformanceDeathTest, AWriteBehindAParameterEndsTheProcess) {
  EXPECT_DEATH(
      {
        install_memory_allocator();
        guard_memory(MemoryGuard::kAfter);
        const std::string text = ToyOptimizer(gradient_descent, "writes behind").failures();
        for (const std::string& found : overwritten_guards()) std::fprintf(stderr, "%s\n", found.c_str());
        std::abort();
      },
      "wrote 4 bytes past the end of a buffer of 308 bytes|past the end of a buffer");
}

TEST(OptimizerConformance, FindsDecayThatEntersTheMomentum) {
  EXPECT_HAS(ToyOptimizer(gradient_descent, "decay in the gradient").failures(),
             "weight decay 0.5 at lr 0.01 moves parameter 0 in two steps by another vector than ");
}

TEST(OptimizerConformance, FindsAnUpdateThatClimbs) {
  ToyOptimizer climbing([](float p, float g, float&, double lr) { return p + static_cast<float>(lr) * g; });
  EXPECT_HAS(climbing.failures(), "the loss p²/2 rises from ");
}

TEST(OptimizerConformance, FindsHiddenState) {
  int calls = 0;
  ToyOptimizer counting([&](float p, float g, float&, double lr) {
    return p - static_cast<float>(lr) * g * (++calls % 7 == 0 ? 1.5f : 1.0f);
  });
  EXPECT_NE(counting.failures().find("different bits with the same two steps repeated: element "), std::string::npos)
      << counting.failures();
}

TEST(OptimizerConformance, FindsWhatAResumedRunWouldNotHave) {
  EXPECT_HAS(ToyOptimizer(gradient_descent, "keeps what no state has").failures(),
             "different bits with steps 3 and 4 by another instance, as after a resume; all that a step needs");
}

TEST(OptimizerConformance, FindsAScalarStateThatDependsOnElements) {
  // It changes no parameter, but each rank would save another value.
  ToyOptimizer largest([](float p, float g, float& most, double lr) {
    most = std::max(most, std::abs(g));
    return p - static_cast<float>(lr) * g;
  });
  largest.state().shape = CHASSIS_STATE_SCALAR;
  EXPECT_HAS(largest.failures(), "scalar state 'momentum' of piece ");
}

TEST(OptimizerConformance, FindsAnUpdateThatIsNotElementwise) {
  // One state for the whole parameter, changed by its elements. Each piece of a parameter has its own.
  ToyOptimizer normed([](float p, float g, float& sum, double lr) {
    sum += g * g;
    return p - static_cast<float>(lr) * g / std::sqrt(1.0f + sum);
  });
  normed.state().shape = CHASSIS_STATE_SCALAR;
  EXPECT_NE(normed.failures().find("a parameter cut at element 113 is updated differently from the whole parameter"),
            std::string::npos)
      << normed.failures();
  normed.state().granularity = CHASSIS_GRANULARITY_MATRIX;
  EXPECT_EQ(normed.failures(), "") << "it declares that parameters are not cut";
}

}  // namespace
}  // namespace chassis
