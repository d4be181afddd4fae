// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): steps by the sign of a blend of momentum
// and gradient. One elementwise state, which may be sharded anywhere; runs on the CPU.
#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Lion final : public Optimizer {
 public:
  static constexpr std::string_view kId = "optimizer_cpp";
  static constexpr std::string_view kDoc = "Lion: the sign of a blend of momentum and gradient";

  static const Options& options() {
    static const Options schema = {
        option("beta1", 0.9).range(0, 1).doc("share of the momentum in the blend whose sign is the step"),
        option("beta2", 0.99).range(0, 1).doc("share of the momentum that is kept"),
    };
    return schema;
  }

  explicit Lion(const Host& host)
      : Optimizer(host),
        beta1_(static_cast<float>(option_value<double>(host, "beta1"))),
        beta2_(static_cast<float>(option_value<double>(host, "beta2"))) {}

  // The host allocates, shards, saves and loads the state under this role.
  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg")};
    return kStates;
  }

  // Ranges cover all tensors; results do not depend on which thread runs which range.
  void step(const OptimizerStep& step) override {
    const float grad_scale = static_cast<float>(step.grad_scale());
    step.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      float* p = step.param(i).data<float>();
      const float* g = step.grad(i).data<float>();
      float* m = step.state(i, 0).data<float>();
      const float lr = static_cast<float>(step.lr(i));
      const float shrink = static_cast<float>(1.0 - step.lr(i) * step.weight_decay(i));  // decoupled from the update
      for (int64_t e = begin; e < end; ++e) {
        const float grad = g[e] * grad_scale;
        const float blend = beta1_ * m[e] + (1 - beta1_) * grad;
        const float sign = static_cast<float>((blend > 0) - (blend < 0));
        p[e] = p[e] * shrink - lr * sign;
        m[e] = beta2_ * m[e] + (1 - beta2_) * grad;
      }
    });
  }

 private:
  const float beta1_, beta2_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Lion)
