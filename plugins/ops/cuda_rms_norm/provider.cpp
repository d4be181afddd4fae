// The ops provider cuda_rms_norm: claims rms_norm on CUDA devices, with its own forward and backward.
#include "chassis/cost.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;
namespace kernels = cuda_rms_norm;

kernels::Dtype dtype_of(uint32_t dtype, std::string_view what) {
  switch (dtype) {
    case CHASSIS_DTYPE_F32:
      return kernels::Dtype::kF32;
    case CHASSIS_DTYPE_F16:
      return kernels::Dtype::kF16;
    case CHASSIS_DTYPE_BF16:
      return kernels::Dtype::kBF16;
  }
  refuse(what, " is ", dtype_name(dtype), ", expected float32, float16 or bfloat16");
}

void check_launch(const char* error, std::string_view what) {
  if (error != nullptr) throw Failure(CHASSIS_INTERNAL, "rms_norm ", what, ": CUDA error '", error, "'");
}

class RmsNorm : public Kernel {
 public:
  explicit RmsNorm(float eps) : eps_(eps) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), weight = call.param(0);
    const kernels::Problem problem = problem_of(call, x, weight.dtype());
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    float* inverse_rms = nullptr;
    if (call.training()) {
      Tensor saved = Tensor::create(call.host(), CHASSIS_DTYPE_F32, x.sizes().first(x.sizes().size() - 1),
                                    x.device_type(), x.view().device_index);
      inverse_rms = static_cast<float*>(saved.view().data);
      call.save(0, std::move(saved));
    }
    check_launch(kernels::forward(problem, x.view().data, weight.view().data, y.view().data, inverse_rms), "forward");
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const BorrowedTensor x = call.input(0), weight = call.param(0);
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    check_launch(kernels::backward_input(problem_of(call, x, weight.dtype()), x.view().data, weight.view().data,
                                         static_cast<const float*>(call.saved(0).view().data), dy.view().data,
                                         call.grad_input(0).view().data, add),
                 "backward_inputs");
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0);
    if (!dweight) return;
    const BorrowedTensor x = call.input(0);
    kernels::Problem problem = problem_of(call, x, CHASSIS_DTYPE_F32);
    if (!dy) problem.num_rows = 0;  // a zero gradient
    const Tensor partial =
        Tensor::create(call.host(), CHASSIS_DTYPE_F32, std::array{kernels::num_partials(problem.num_rows), problem.n},
                       x.device_type(), x.view().device_index);
    check_launch(kernels::backward_weight(problem, x.view().data, static_cast<const float*>(call.saved(0).view().data),
                                          dy ? dy.view().data : nullptr, static_cast<float*>(partial.view().data),
                                          static_cast<float*>(dweight.view().data), call.grad_param_beta(0)),
                 "backward_params");
  }

 private:
  kernels::Problem problem_of(const Call& call, const BorrowedTensor& x, uint32_t weight_dtype) const {
    if (!x.is_contiguous()) throw Failure(CHASSIS_INTERNAL, "rms_norm: x is not contiguous");
    const int64_t n = x.size(-1);
    return {x.view().device_index,
            call.stream(),
            dtype_of(x.dtype(), "x"),
            dtype_of(weight_dtype, "weight"),
            n == 0 ? 0 : x.num_elements() / n,
            n,
            eps_};
  }

  float eps_;
};

class CudaRmsNorm : public Ops {
 public:
  static constexpr std::string_view kDoc = "RMSNorm on CUDA with a fused backward; computes in fp32";
  static constexpr std::string_view kPatterns[] = {"rms_norm"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"eps"});
    if (node.device_type() != CHASSIS_DEVICE_CUDA) refuse("runs only on CUDA devices");
    dtype_of(node.input(0).dtype(), "x");
    dtype_of(node.param(0).dtype(), "weight");
    return cost_ns(host(), node, 2);
  }

  void infer(const NodeView& node, Infer& out) override {
    const auto shape = node.input(0).local_shape();
    const int64_t n = node.input(0).size(-1);
    const int64_t num_rows = n == 0 ? 0 : node.input(0).num_elements() / n;
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
    if (node.training()) out.keeps_input(0).saves(CHASSIS_DTYPE_F32, shape.first(shape.size() - 1));
    out.workspace(0, kernels::num_partials(num_rows) * n * sizeof(float));
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return std::make_unique<RmsNorm>(static_cast<float>(node.op(0).attr_float("eps")));
  }
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nrequires=chassis.task/1\nswappable=1\nlicense=Apache-2.0\n", CudaRmsNorm)
