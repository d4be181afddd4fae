// The attention provider "sdpa": LibTorch's fused kernels, forward and backward, on the CPU and on CUDA.
#include "chassis/plugin.hpp"
#include "chassis/cost.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;

class Sdpa : public Ops {
 public:
  static constexpr std::string_view kDoc = "LibTorch's fused attention kernels; every mask; CPU and CUDA";
  static constexpr std::string_view kPatterns[] = {"attention"};
  explicit Sdpa(const Host& host) : Ops(host), shared_(host) {}

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"scale", "causal", "window", "chunk", "document", "prefix"});
    if (node.device_type() == CHASSIS_DEVICE_CUDA) {
      if (const std::string why = sdpa::cuda_refusal(node); !why.empty()) refuse(why);
      return attention_cost_ns(host(), node, pairs_of(node), 1, kGpuFlopsPerNs / 2);
    }
    const uint32_t dtype = node.input(0).dtype();
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_F64 && dtype != CHASSIS_DTYPE_BF16 &&
        dtype != CHASSIS_DTYPE_F16)
      refuse("computes in floating types, not ", dtype_name(dtype));
    const int64_t qk = node.input(0).size(3), v = node.input(2).size(3);
    if (qk != v)
      refuse("head dims of keys (", qk, ") and values (", v, ") differ; LibTorch's CPU kernel needs them equal");
    constexpr double kFlopsPerNs = 35;  // measured with AVX-512
    const OperandView q = node.input(0);
    return attention_cost_ns(host(), node, pairs_of(node), q.size(0) * q.size(2), kFlopsPerNs);
  }

  void infer(const NodeView& node, Infer& out) override {
    const OperandView q = node.input(0), k = node.input(1);
    const bool cuda = node.device_type() == CHASSIS_DEVICE_CUDA;
    if (node.training()) {
      for (int i = 0; i < node.num_inputs(); ++i)
        if (node.has_input(i)) out.keeps_input(static_cast<uint32_t>(i));
      out.keeps_output(0);
      if (cuda)
        out.saves(CHASSIS_DTYPE_F32, sdpa::cuda_saved_shape(node));
      else
        out.saves(sdpa::sum_dtype(q.dtype()), {q.size(0), q.size(1), q.size(2)});
    }
    if (cuda) {
      out.workspace(sdpa::cuda_workspace_bytes(node, false), sdpa::cuda_workspace_bytes(node, true));
      return;
    }
    const sdpa::MaskSpec spec(node.op(0));
    const bool mask = spec.document || spec.prefix || spec.window > 0 || spec.chunk > 0;
    const int64_t rows = spec.document || spec.prefix ? q.size(0) : 1;
    const uint64_t bytes = mask ? static_cast<uint64_t>(rows * q.size(1) * k.size(1)) * dtype_bytes(q.dtype()) : 0;
    out.workspace(bytes, bytes);
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return node.device_type() == CHASSIS_DEVICE_CUDA ? sdpa::make_cuda_kernel(shared_, node)
                                                     : sdpa::make_cpu_kernel(shared_, node);
  }
  void deactivate() override { shared_.mask.reset(); }

 private:
  // LibTorch's kernels skip keys that a causal mask hides, but compute all keys under a window.
  static double pairs_of(const NodeView& node) {
    const sdpa::MaskSpec spec(node.op(0));
    const double all = static_cast<double>(node.input(0).size(1) * node.input(1).size(1));
    return spec.causal && spec.window == 0 ? all / 2 : all;
  }

  sdpa::Shared shared_;
};

}  // namespace

CHASSIS_PLUGIN(SDPA_OPERATORS(SDPA_LINE)
               "requires=chassis.dispatch/1\nrequires=chassis.tensor/1\nrequires=chassis.task/1\n"
               "license=Apache-2.0\n",
               Sdpa)
