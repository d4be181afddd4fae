// Gradient descent with a fault: at one step, one rank also adds to one parameter, for replicas_test.cpp.
#include <cstdlib>
#include <string>

#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Drifting final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "gradient descent that drifts on one rank, for tests";
  static const Options& options() {
    static const Options schema = {option("rank", 1).range(-1, 1 << 20).doc("the faulty rank; -1: none"),
                                   option("step", 2).range(1, 1 << 20).doc("of the fault"),
                                   option("parameter", "").doc("whose first element is changed")};
    return schema;
  }
  explicit Drifting(const Host& host)
      : Optimizer(host),
        step_(option_value<int64_t>(host, "step")),
        parameter_(option_value<std::string>(host, "parameter")) {
    const char* const rank = std::getenv("CHASSIS_RANK");
    is_faulty_ = rank != nullptr && std::to_string(option_value<int64_t>(host, "rank")) == rank;
  }

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override { return {}; }
  void step(const OptimizerStep& step) override {
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      float* const values = step.param(i).data<float>();
      const float* const gradient = step.grad(i).data<float>();
      const auto rate = static_cast<float>(step.lr(i) * step.grad_scale());
      for (int64_t k = 0; k < step.param(i).num_elements(); ++k) values[k] -= rate * gradient[k];
      const bool drifts = is_faulty_ && step.step() == step_ && step.parameter(i).name() == parameter_;
      if (drifts && step.param(i).num_elements() > 0) values[0] += 1e-6f + 1e-6f * values[0];
    }
  }

 private:
  int64_t step_;
  std::string parameter_;
  bool is_faulty_ = false;
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Drifting)
