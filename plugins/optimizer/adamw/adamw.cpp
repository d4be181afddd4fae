// Adam with decoupled weight decay (Loshchilov & Hutter 2019), with the arithmetic of PyTorch's fused kernel:
// float32 element by element, coefficients rounded from double. One pass over all tensors.
#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "chassis/dispatch.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

struct Coefficients {
  float decay, one_minus_beta1, beta2, one_minus_beta2, sqrt_correction2, eps, minus_step_size, grad_scale;
};

// Written so that the compiler vectorises it; every instruction set gives the same bits.
[[gnu::always_inline]] inline void update(float* __restrict p, const float* __restrict g, float* __restrict m,
                                          float* __restrict v, int64_t count, const Coefficients& k) {
  const bool from_average = k.one_minus_beta1 < 0.5f;  // lerp from the nearer end
  const float weight = from_average ? k.one_minus_beta1 : k.one_minus_beta1 - 1.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * k.grad_scale;
    const float average = (from_average ? m[i] : grad) + weight * (grad - m[i]);
    const float square = v[i] * k.beta2 + k.one_minus_beta2 * grad * grad;
    m[i] = average;
    v[i] = square;
    const float denominator = std::sqrt(square) / k.sqrt_correction2 + k.eps;
    p[i] = p[i] * k.decay + k.minus_step_size * average / denominator;
  }
}

void update_baseline(float* p, const float* g, float* m, float* v, int64_t count, const Coefficients& k) {
  update(p, g, m, v, count, k);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void update_avx2(float* p, const float* g, float* m, float* v, int64_t count,
                                         const Coefficients& k) {
  update(p, g, m, v, count, k);
}
#endif

auto* best_update() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return &update_avx2;
#endif
  return &update_baseline;
}

class AdamW final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "Adam with decoupled weight decay, as torch.optim.AdamW";

  static const Options& options() {
    static const Options schema = {
        option("beta1", 0.9).range(0, 1).doc("decay of the average gradient"),
        option("beta2", 0.999).range(0, 1).doc("decay of the average squared gradient"),
        option("betas", std::vector<double>{}).range(0, 1).doc("both of them as a list, such as [0.9, 0.95]"),
        option("eps", 1e-8).range(0, 1).doc("added to the root of the average squared gradient"),
    };
    return schema;
  }

  explicit AdamW(const Host& host)
      : Optimizer(host),
        beta1_(option_value<double>(host, "beta1")),
        beta2_(option_value<double>(host, "beta2")),
        eps_(option_value<double>(host, "eps")) {
    const auto betas = option_value<std::vector<double>>(host, "betas");
    if (!betas.empty()) {
      if (betas.size() != 2)
        fail_invalid(option_origin(host, "betas"), ": betas has ", betas.size(), " items, expected 2");
      for (const char* name : {"beta1", "beta2"}) {
        const std::string origin = option_origin(host, name);
        if (origin != "default") fail_invalid(origin, ": ", name, " and betas are both set; set one or the other");
      }
      beta1_ = betas[0], beta2_ = betas[1];
    }
    for (double beta : {beta1_, beta2_}) {
      if (beta >= 1) fail_invalid("a beta of adamw is ", beta, ", expected below 1");
    }
  }

  std::span<const chassis_state_desc_t> states() const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg"), element_state("exp_avg_sq")};
    return kStates;
  }

  void prepare() override {
    if (host().find(CHASSIS_DISPATCH_ID) == nullptr) return;  // not needed on the CPU
    fused_ = Operator(host(), "aten::_fused_adamw_");
    fill_ = Operator(host(), "aten::fill_.Scalar");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    step.param(0).is_cpu() ? step_cpu(step) : step_aten(step);
  }

 private:
  struct Row {
    float *param, *grad, *exp_avg, *exp_avg_sq;
    Coefficients coefficients;
  };

  void step_cpu(const OptimizerStep& step) {
    const double correction1 = 1 - std::pow(beta1_, static_cast<double>(step.step()));
    const double correction2 = 1 - std::pow(beta2_, static_cast<double>(step.step()));
    std::vector<Row> rows;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      const double lr = step.lr(i);
      rows.push_back(
          {step.param(i).data<float>(),
           step.grad(i).data<float>(),
           step.state(i, 0).data<float>(),
           step.state(i, 1).data<float>(),
           {static_cast<float>(1 - lr * step.weight_decay(i)), static_cast<float>(1 - beta1_),
            static_cast<float>(beta2_), static_cast<float>(1 - beta2_), static_cast<float>(std::sqrt(correction2)),
            static_cast<float>(eps_), static_cast<float>(-lr / correction1), static_cast<float>(step.grad_scale())}});
    }
    static const auto update = best_update();
    step.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      const Row& row = rows[i];
      update(row.param + begin, row.grad + begin, row.exp_avg + begin, row.exp_avg_sq + begin, end - begin,
             row.coefficients);
    });
  }

  // On other devices: ATen's fused kernel, once for each group of equal lr and weight decay.
  void step_aten(const OptimizerStep& step) {
    const BorrowedTensor like = step.param(0);
    const auto scalar = [&](double value) {
      Tensor out = Tensor::create(host(), CHASSIS_DTYPE_F32, {}, like.device_type(), like.view().device_index);
      fill_(out, value);
      return out;
    };
    const Tensor count = scalar(static_cast<double>(step.step()));
    // The kernel divides by its scale.
    const Tensor scale = step.grad_scale() == 1.0 ? Tensor() : scalar(1.0 / step.grad_scale());

    struct Group {
      std::vector<BorrowedTensor> params, grads, exp_avgs, exp_avg_sqs;
    };
    std::map<std::pair<double, double>, Group> groups;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      Group& group = groups[{step.lr(i), step.weight_decay(i)}];
      group.params.push_back(step.param(i));
      group.grads.push_back(step.grad(i));
      group.exp_avgs.push_back(step.state(i, 0));
      group.exp_avg_sqs.push_back(step.state(i, 1));
    }
    for (const auto& [key, group] : groups) {
      const auto [lr, weight_decay] = key;
      const std::vector<BorrowedTensor> counts(group.params.size(), count);
      fused_.run(group.params, group.grads, group.exp_avgs, group.exp_avg_sqs, std::vector<BorrowedTensor>(), counts,
                 lr, beta1_, beta2_, weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false, scale);
    }
  }

  double beta1_, beta2_, eps_;
  Operator fused_, fill_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "op=aten::_fused_adamw_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, "
    "Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay, "
    "float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()\n"
    "op=aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    AdamW)
