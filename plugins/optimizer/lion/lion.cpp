// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"): every element moves by lr, in the direction
// of the sign of a blend of momentum and gradient.
#include <vector>

#include "chassis/dispatch.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

struct Coefficients {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, decay, lr, grad_scale;
};

// Written so that the compiler vectorises it; every instruction set gives the same bits.
[[gnu::always_inline]] inline void update(float* __restrict p, const float* __restrict g, float* __restrict m,
                                          int64_t count, const Coefficients& k) {
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * k.grad_scale;
    const float blend = k.beta1 * m[i] + k.one_minus_beta1 * grad;
    const float sign = static_cast<float>(blend > 0) - static_cast<float>(blend < 0);
    p[i] = p[i] * k.decay - k.lr * sign;
    m[i] = k.beta2 * m[i] + k.one_minus_beta2 * grad;
  }
}

void update_baseline(float* p, const float* g, float* m, int64_t count, const Coefficients& k) {
  update(p, g, m, count, k);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void update_avx2(float* p, const float* g, float* m, int64_t count, const Coefficients& k) {
  update(p, g, m, count, k);
}
#endif

auto* best_update() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return &update_avx2;
#endif
  return &update_baseline;
}

class Lion final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "Lion: steps by the sign of a blend of momentum and gradient; one state";

  static const Options& options() {
    static const Options schema = {
        option("beta1", 0.9).range(0, 1).doc("share of the momentum in the blend whose sign is the step"),
        option("beta2", 0.99).range(0, 1).doc("share of the momentum that is kept"),
        option("betas", std::vector<double>{}).range(0, 1).doc("both of them as a list, such as [0.95, 0.98]"),
    };
    return schema;
  }

  explicit Lion(const Host& host) : Optimizer(host) {
    beta1_ = option_value<double>(host, "beta1");
    beta2_ = option_value<double>(host, "beta2");
    const auto betas = option_value<std::vector<double>>(host, "betas");
    if (betas.empty()) return;
    if (betas.size() != 2)
      fail_invalid(option_origin(host, "betas"), ": betas has ", betas.size(), " items, expected 2");
    for (const char* name : {"beta1", "beta2"}) {
      const std::string origin = option_origin(host, name);
      if (origin != "default") fail_invalid(origin, ": ", name, " and betas are both set; set one or the other");
    }
    beta1_ = betas[0], beta2_ = betas[1];
  }

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg")};
    return kStates;
  }

  void prepare() override {
    if (host().find(CHASSIS_DISPATCH_ID) == nullptr) return;  // not needed on the CPU
    lerp_ = Operator(host(), "aten::lerp.Scalar");
    lerp_in_place_ = Operator(host(), "aten::lerp_.Scalar");
    sign_ = Operator(host(), "aten::sign_");
    add_ = Operator(host(), "aten::add_.Tensor");
    scale_ = Operator(host(), "aten::mul_.Scalar");
    multiply_ = Operator(host(), "aten::mul_.Tensor");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    step.param(0).is_cpu() ? step_cpu(step) : step_aten(step);
  }

 private:
  struct Row {
    float *param, *grad, *exp_avg;
    Coefficients coefficients;
  };

  void step_cpu(const OptimizerStep& step) {
    std::vector<Row> rows;
    for (uint32_t i = 0; i < step.num_tensors(); ++i)
      rows.push_back({step.param(i).data<float>(),
                      step.grad(i).data<float>(),
                      step.state(i, 0).data<float>(),
                      {static_cast<float>(beta1_), static_cast<float>(1 - beta1_), static_cast<float>(beta2_),
                       static_cast<float>(1 - beta2_), static_cast<float>(1 - step.lr(i) * step.weight_decay(i)),
                       static_cast<float>(step.lr(i)), static_cast<float>(step.grad_scale())}});
    static const auto update = best_update();
    step.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      const Row& row = rows[i];
      update(row.param + begin, row.grad + begin, row.exp_avg + begin, end - begin, row.coefficients);
    });
  }

  void step_aten(const OptimizerStep& step) {
    const BorrowedTensor factor = step.device_grad_scale();
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const BorrowedTensor param = step.param(i), grad = step.grad(i), average = step.state(i, 0);
      if (step.grad_scale() != 1.0) scale_(grad, step.grad_scale());
      if (factor) multiply_(grad, factor);
      const Tensor direction = lerp_(average, grad, 1 - beta1_);
      sign_(direction);
      if (step.weight_decay(i) != 0) scale_(param, 1 - step.lr(i) * step.weight_decay(i));
      add_(param, direction, -step.lr(i));
      lerp_in_place_(average, grad, 1 - beta2_);
    }
  }

  double beta1_ = 0, beta2_ = 0;
  Operator lerp_, lerp_in_place_, sign_, add_, scale_, multiply_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "op=aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor\n"
    "op=aten::lerp_.Scalar(Tensor(a!) self, Tensor end, Scalar weight) -> Tensor(a!)\n"
    "op=aten::sign_(Tensor(a!) self) -> Tensor(a!)\n"
    "op=aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
    "op=aten::mul_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)\n"
    "op=aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Lion)
