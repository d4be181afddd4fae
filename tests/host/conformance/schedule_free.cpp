// Schedule-Free AdamW (Defazio et al. 2024), which `plugins check` must accept: in an average of iterates, decay shows
// up later. Parameters hold y; x, the average, is what would be evaluated and saved.
#include <cmath>

#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {
using namespace chassis;

class ScheduleFree final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "Schedule-Free AdamW";
  static const Options& options() {
    static const Options schema = {option("beta1", 0.9).range(0, 1).doc("interpolation"),
                                   option("beta2", 0.999).range(0, 1).doc("of squares"),
                                   option("eps", 1e-8).range(0, 1).doc("eps")};
    return schema;
  }
  explicit ScheduleFree(const Host& host)
      : Optimizer(host),
        beta1_(option_value<double>(host, "beta1")),
        beta2_(option_value<double>(host, "beta2")),
        eps_(option_value<double>(host, "eps")) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kWeightSum = {sizeof(chassis_state_desc_t),
                                                        CHASSIS_DTYPE_F32,
                                                        str("weight_sum"),
                                                        CHASSIS_STATE_SCALAR,
                                                        CHASSIS_GRANULARITY_ELEMENT,
                                                        1,
                                                        0.0};
    // z should start as a copy of the parameter, but a state starts as a constant: d = z - y starts at 0.
    static constexpr chassis_state_desc_t kStates[] = {element_state("z_minus_y"), element_state("exp_avg_sq"),
                                                       kWeightSum};
    return kStates;
  }

  void step(const OptimizerStep& s) override {
    const double bias2 = 1 - std::pow(beta2_, static_cast<double>(s.step()));
    std::vector<double> ck;
    for (uint32_t i = 0; i < s.num_tensors(); ++i) {
      float& sum = *s.state(i, 2).data<float>();
      const double w = s.lr(i) * s.lr(i);
      sum = static_cast<float>(sum + w);
      ck.push_back(sum > 0 ? w / sum : 0);
    }
    s.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      float *y = s.param(i).data<float>(), *d = s.state(i, 0).data<float>(), *v = s.state(i, 1).data<float>();
      const float* g = s.grad(i).data<float>();
      const double lr = s.lr(i), wd = s.weight_decay(i), c = ck[i];
      for (int64_t e = begin; e < end; ++e) {
        const double grad = g[e] * s.grad_scale();
        v[e] = static_cast<float>(beta2_ * v[e] + (1 - beta2_) * grad * grad);
        const double z = static_cast<double>(y[e]) + d[e];
        const double x = (y[e] - (1 - beta1_) * z) / beta1_;
        const double z2 = z - lr * (grad / (std::sqrt(v[e] / bias2) + eps_) + wd * y[e]);
        const double x2 = (1 - c) * x + c * z2;
        const double y2 = (1 - beta1_) * z2 + beta1_ * x2;
        y[e] = static_cast<float>(y2);
        d[e] = static_cast<float>(z2 - y2);
      }
    });
  }

 private:
  const double beta1_, beta2_, eps_;
};
}  // namespace
CHASSIS_PLUGIN("requires=chassis.options/1\nrequires=chassis.task/1\nrequires=chassis.tensor/1\nlicense=Apache-2.0\n",
               ScheduleFree)
