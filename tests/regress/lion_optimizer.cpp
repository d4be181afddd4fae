// Lion (Chen et al. 2023) as a third party would write it: one momentum state, which may be cut at any element.
#include <cmath>

#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Lion final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "the sign of an interpolated momentum";
  static const Options& options() {
    static const Options schema = {option("beta1", 0.9).range(0, 1).doc("share of the momentum in the update"),
                                   option("beta2", 0.99).range(0, 1).doc("share of the momentum that is kept")};
    return schema;
  }
  explicit Lion(const Host& host)
      : Optimizer(host),
        beta1_(static_cast<float>(option_value<double>(host, "beta1"))),
        beta2_(static_cast<float>(option_value<double>(host, "beta2"))) {
    if (beta1_ > beta2_) fail_invalid(option_origin(host, "beta1"), ": beta1 ", beta1_, " is above beta2 ", beta2_);
  }

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg")};
    return kStates;
  }
  void step(const OptimizerStep& step) override {
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      auto* p = step.param(i).data<float>();
      const auto* g = step.grad(i).data<float>();
      auto* m = step.state(i, 0).data<float>();
      const auto lr = static_cast<float>(step.lr(i)), decay = static_cast<float>(step.weight_decay(i));
      const auto scale = static_cast<float>(step.grad_scale());
      for (int64_t e = 0; e < step.param(i).num_elements(); ++e) {
        const float grad = g[e] * scale, mixed = beta1_ * m[e] + (1 - beta1_) * grad;
        p[e] -= lr * (static_cast<float>((mixed > 0) - (mixed < 0)) + decay * p[e]);
        m[e] = beta2_ * m[e] + (1 - beta2_) * grad;
      }
    }
  }

 private:
  const float beta1_, beta2_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", Lion)
