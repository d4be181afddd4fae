// Stochastic gradient descent with momentum (Sutskever et al. 2013), with the arithmetic of torch.optim.SGD.
#include <map>
#include <vector>

#include "chassis/dispatch.hpp"
#include "chassis/optimizer.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Sgd final : public Optimizer {
 public:
  static constexpr std::string_view kDoc = "stochastic gradient descent with momentum, as in torch.optim.SGD";

  static const Options& options() {
    static const Options schema = {
        option("momentum", 0.0).range(0, 1).doc("share of the last update that is kept; 0 needs no optimizer state"),
        option("dampening", 0.0).range(0, 1).doc("share of the gradient that momentum leaves out"),
        option("nesterov", false).doc("Nesterov momentum; needs momentum above 0 and dampening 0"),
    };
    return schema;
  }

  explicit Sgd(const Host& host)
      : Optimizer(host),
        momentum_(option_value<double>(host, "momentum")),
        dampening_(option_value<double>(host, "dampening")),
        nesterov_(option_value<bool>(host, "nesterov")) {
    if (nesterov_ && (momentum_ <= 0 || dampening_ != 0)) {
      fail_invalid(option_origin(host, "nesterov"), ": nesterov needs momentum above 0 and dampening 0, got momentum ",
                   momentum_, " and dampening ", dampening_);
    }
  }

  std::span<const chassis_state_desc_t> states(const OptimizerParameter&) const override {
    static constexpr chassis_state_desc_t kMomentum[] = {element_state("momentum_buffer")};
    return has_momentum() ? std::span<const chassis_state_desc_t>(kMomentum) : std::span<const chassis_state_desc_t>();
  }

  void prepare() override {
    if (host().find(CHASSIS_DISPATCH_ID) == nullptr) return;  // not needed on the CPU
    fused_ = Operator(host(), "aten::_fused_sgd_");
    scale_ = Operator(host(), "aten::_foreach_mul_.Scalar");
    scale_by_tensor_ = Operator(host(), "aten::_foreach_mul_.Tensor");
  }

  void step(const OptimizerStep& step) override {
    if (step.num_tensors() == 0) return;
    step.param(0).is_cpu() ? step_cpu(step) : step_aten(step);
  }

 private:
  bool has_momentum() const { return momentum_ != 0; }

  struct Row {
    float *param, *grad, *momentum;
    float minus_lr, weight_decay;
  };

  void step_cpu(const OptimizerStep& step) {
    std::vector<Row> rows;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      rows.push_back({step.param(i).data<float>(), step.grad(i).data<float>(),
                      has_momentum() ? step.state(i, 0).data<float>() : nullptr, static_cast<float>(-step.lr(i)),
                      static_cast<float>(step.weight_decay(i))});
    }
    const float grad_scale = static_cast<float>(step.grad_scale());
    // The first buffer is the gradient itself, without dampening.
    const float keep = step.step() == 1 ? 0.0f : static_cast<float>(momentum_);
    const float take = step.step() == 1 ? 1.0f : static_cast<float>(1 - dampening_);
    const float ahead = static_cast<float>(momentum_);
    step.for_each_range([&](uint32_t i, int64_t begin, int64_t end) {
      const Row& row = rows[i];
      float* __restrict p = row.param;
      const float* __restrict g = row.grad;
      float* __restrict m = row.momentum;
      if (m == nullptr) {
        for (int64_t e = begin; e < end; ++e) {
          p[e] += row.minus_lr * (g[e] * grad_scale + row.weight_decay * p[e]);
        }
        return;
      }
      for (int64_t e = begin; e < end; ++e) {
        const float grad = g[e] * grad_scale + row.weight_decay * p[e];
        m[e] = keep * m[e] + take * grad;
        p[e] += row.minus_lr * (nesterov_ ? grad + ahead * m[e] : m[e]);
      }
    });
  }

  // On other devices: ATen's fused kernel, once for each group of equal lr and weight decay.
  void step_aten(const OptimizerStep& step) {
    struct Group {
      std::vector<BorrowedTensor> params, grads, momenta;
    };
    std::map<std::pair<double, double>, Group> groups;
    for (uint32_t i = 0; i < step.num_tensors(); ++i) {
      Group& group = groups[{step.lr(i), step.weight_decay(i)}];
      group.params.push_back(step.param(i));
      group.grads.push_back(step.grad(i));
      if (has_momentum()) group.momenta.push_back(step.state(i, 0));
    }
    for (const auto& [key, group] : groups) {
      const auto [lr, weight_decay] = key;
      if (step.grad_scale() != 1.0) scale_.run(group.grads, step.grad_scale());
      if (const BorrowedTensor factor = step.device_grad_scale()) scale_by_tensor_.run(group.grads, factor);
      fused_.run(group.params, group.grads, group.momenta, weight_decay, momentum_, lr, dampening_, nesterov_,
                 /*maximize=*/false, /*is_first_step=*/step.step() == 1);
    }
  }

  double momentum_, dampening_;
  bool nesterov_;
  Operator fused_, scale_, scale_by_tensor_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.task/1\n"
    "requires=chassis.tensor/1\n"
    "op=aten::_fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, "
    "float weight_decay, float momentum, float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, "
    "Tensor? grad_scale=None, Tensor? found_inf=None) -> ()\n"
    "op=aten::_foreach_mul_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()\n"
    "op=aten::_foreach_mul_.Tensor(Tensor(a!)[] self, Tensor other) -> ()\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Sgd)
