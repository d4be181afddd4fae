// The attention provider "sdpa": LibTorch's fused kernels, forward and backward, on the CPU and on CUDA.
#include <algorithm>

#include "chassis/cost.hpp"
#include "chassis/plugin.hpp"
#include "kernels.hpp"

namespace {

using namespace chassis;

class Sdpa : public Ops {
 public:
  static constexpr std::string_view kDoc = "LibTorch's fused attention kernels; every mask; CPU and CUDA";
  static constexpr std::string_view kPatterns[] = {"attention"};
  explicit Sdpa(const Host& host) : Ops(host), shared_(host) {}

  double claim(const NodeView& node) override {
    if (node.device_type() != CHASSIS_DEVICE_CPU && node.device_type() != CHASSIS_DEVICE_CUDA)
      refuse("computes on the CPU and on CUDA");
    if (node.op(0).has_attr("softcap")) refuse("LibTorch's kernels do not cap scores (softcap)");
    node.op(0).refuse_attrs_other_than(
        {"scale", "causal", "window", "chunk", "document", "prefix", "query_part", "key_part"});
    if (by_parts(node)) return claim_parts(node);
    if (node.device_type() == CHASSIS_DEVICE_CUDA) {
      if (const std::string why = sdpa::cuda_refusal(node); !why.empty()) refuse(why);
      return attention_cost_ns(host(), node, pairs_of(node), 1, kGpuFlopsPerNs / 2);
    }
    const uint32_t dtype = node.input(0).dtype();
    if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_F64 && dtype != CHASSIS_DTYPE_BF16 &&
        dtype != CHASSIS_DTYPE_F16)
      refuse("computes in floating types, not ", dtype_name(dtype));
    if (node.op(0).has_attr("key_part") && dtype == CHASSIS_DTYPE_F64)
      refuse("returns log sums (key_part) in f32, so not for f64");
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
    if (by_parts(node)) {
      const bool uses_tiles = !sdpa::cuda_part_uses_flash(node) || sdpa::MaskSpec(node.op(0)).document;
      return sdpa::infer_tiles(node, uses_tiles, out);
    }
    if (node.op(0).has_attr("key_part")) return infer_partial(node, out);
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
    const int64_t rows = sdpa::num_mask_rows(spec, q.size(0), q.size(1), k.size(1));
    const uint64_t num_masks = node.op(0).has_attr("query_part") ? sdpa::Shared::kMaxMasks : 1;
    const uint64_t mask = num_masks * static_cast<uint64_t>(rows * q.size(1) * k.size(1)) * dtype_bytes(q.dtype());
    // Each segment's results exist until they are copied; the largest segment is a whole row, in every row.
    const bool segments = spec.document || spec.chunk > 0;
    const uint64_t sums =
        static_cast<uint64_t>(q.size(0) * q.size(1) * q.size(2)) * dtype_bytes(sdpa::sum_dtype(q.dtype()));
    const uint64_t forward = segments ? bytes_of(q) + sums : 0;
    const uint64_t backward = segments ? bytes_of(q) + bytes_of(k) + bytes_of(node.input(2)) : 0;
    out.workspace(std::max(mask, forward), std::max(mask, backward));
  }

  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    if (by_parts(node)) return sdpa::make_cuda_part_kernel(shared_, node);
    if (node.op(0).has_attr("key_part")) return sdpa::make_partial_kernel(shared_, node);
    return node.device_type() == CHASSIS_DEVICE_CUDA ? sdpa::make_cuda_kernel(shared_, node)
                                                     : sdpa::make_cpu_kernel(shared_, node);
  }
  void deactivate() override { shared_.masks.clear(); }

 private:
  // True if the node is computed by flash attention where that is possible, else by tiles.
  static bool by_parts(const NodeView& node) {
    const bool is_part = node.op(0).has_attr("query_part") || node.op(0).has_attr("key_part");
    return is_part && node.device_type() == CHASSIS_DEVICE_CUDA;
  }

  double claim_parts(const NodeView& node) const {
    if (const std::string why = sdpa::tiles_refusal(node); !why.empty()) refuse(why);
    return attention_cost_ns(host(), node, pairs_of(node), 1,
                             kGpuFlopsPerNs / (sdpa::cuda_part_uses_flash(node) ? 2 : 16));
  }

  // The workspace has the mask, as bytes and as a bias.
  static void infer_partial(const NodeView& node, Infer& out) {
    const OperandView q = node.input(0), k = node.input(1);
    for (int i = 0; i < node.num_inputs(); ++i)
      if (node.has_input(i)) out.keeps_input(static_cast<uint32_t>(i));
    out.flags(CHASSIS_KERNEL_LOG_SUM).keeps_output(0).saves(CHASSIS_DTYPE_F32, {q.size(0), q.size(2), q.size(1)});
    const auto mask = static_cast<uint64_t>(q.size(0) * q.size(1) * k.size(1)) * (1 + dtype_bytes(q.dtype()));
    out.workspace(mask, mask);
  }

  static uint64_t bytes_of(const OperandView& x) {
    return static_cast<uint64_t>(x.num_elements()) * dtype_bytes(x.dtype());
  }

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
               "swappable=1\n"
               "license=Apache-2.0\n",
               Sdpa)
