// AdamW in one pass over all tensors: chassis/adamw.hpp on the CPU, PyTorch's fused kernel elsewhere.
#include <map>
#include <tuple>
#include <vector>

#include "chassis/adamw.hpp"
#include "chassis/dispatch.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

void update_baseline(float* p, const float* g, float* m, float* v, int64_t count, const AdamWCoefficients& k) {
  adamw_update(p, g, m, v, count, k);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void update_avx2(float* p, const float* g, float* m, float* v, int64_t count,
                                         const AdamWCoefficients& k) {
  adamw_update(p, g, m, v, count, k);
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
  static constexpr std::string_view kDoc = "Adam with decoupled weight decay, as in torch.optim.AdamW";

  static const Options& options() {
    static const Options schema = {
        option("beta1", 0.9).range(0, 1).doc("decay of the average gradient"),
        option("beta2", 0.999).range(0, 1).doc("decay of the average squared gradient"),
        option("betas", std::vector<double>{}).range(0, 1).doc("both of them as a list, such as [0.9, 0.95]"),
        option("eps", 1e-8).range(0, 1).doc("added to the root of the average squared gradient"),
    };
    return schema;
  }

  explicit AdamW(const Host& host) : Optimizer(host), settings_(AdamWSettings::read(host, "adamw")) {}

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kStates[] = {element_state("exp_avg"), element_state("exp_avg_sq")};
    return kStates;
  }

  void prepare() override {
    if (host().find(CHASSIS_DISPATCH_ID) == nullptr) return;  // not needed on the CPU
    fused_ = Operator(host(), "aten::_fused_adamw_");
    fill_ = Operator(host(), "aten::fill_.Scalar");
    divide_ = Operator(host(), "aten::div_.Tensor");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    step.param(0).is_cpu() ? step_cpu(step) : step_aten(step);
  }

 private:
  struct Row {
    float *param, *grad, *exp_avg, *exp_avg_sq;
    AdamWCoefficients coefficients;
  };

  void step_cpu(const OptimizerStep& step) {
    std::vector<Row> rows;
    for (uint32_t i = 0; i < step.num_tensors(); ++i)
      rows.push_back(
          {step.param(i).data<float>(), step.grad(i).data<float>(), step.state(i, 0).data<float>(),
           step.state(i, 1).data<float>(),
           AdamWCoefficients::of(settings_, step.step(), step.lr(i), step.weight_decay(i), step.grad_scale())});
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
    Tensor scale = step.grad_scale() == 1.0 ? Tensor() : scalar(1.0 / step.grad_scale());
    if (const BorrowedTensor factor = step.device_grad_scale()) {
      if (!scale) scale = scalar(1.0);
      divide_(scale, factor);
    }

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
                 lr, settings_.beta1, settings_.beta2, weight_decay, settings_.eps, /*amsgrad=*/false,
                 /*maximize=*/false, scale);
    }
  }

  const AdamWSettings settings_;
  Operator fused_, fill_, divide_;
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
    "op=aten::div_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    AdamW)
