// LibTorch's flash kernel for the CPU, forward and backward. It supports grouped heads, so keys are not repeated.
#include <algorithm>
#include <cstring>

#include "chassis/task.hpp"
#include "cpu_kernel.hpp"

namespace sdpa {
namespace {

class CpuAttention final : public CpuKernel {
 public:
  CpuAttention(Shared& shared, const OpView& op)
      : CpuKernel(shared.aten, op), shared_(shared), has_query_part_(op.has_attr("query_part")) {}

  void forward(Call& call) override {
    const Problem problem = problem_of(call, call.input(1).size(1));
    const Plan plan = plan_of(spec_, problem);
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2);
    if (plan.method != Plan::Method::kSegments) {
      const Tensor bias = plan.method == Plan::Method::kMask ? bias_of(call, problem) : Tensor();
      auto [out, lse] = attend(heads_first(q), heads_first(k), heads_first(v), plan.causal && !bias, bias);
      Tensor rows = packed(heads_first(out));
      if (plan.has_padding) zero_padding(problem, rows);
      call.set_output(0, std::move(rows));
      call.save(0, packed(heads_first(lse)));
      return;
    }
    Tensor out = Tensor::create(call.host(), q.dtype(), q.sizes());
    Tensor lse = Tensor::create(call.host(), sum_dtype(q.dtype()), {q.size(0), q.size(1), q.size(2)});
    if (plan.has_padding) {
      aten_.zero_(out);
      aten_.zero_(lse);
    }
    for (const Segment& segment : plan.segments) {
      auto [part, part_lse] = attend(heads_first(part_of(q, segment)), heads_first(part_of(k, segment)),
                                     heads_first(part_of(v, segment)), plan.causal, Tensor());
      aten_.copy_(part_of(out, segment), heads_first(part));
      aten_.copy_(part_of(lse, segment), heads_first(part_lse));
    }
    call.set_output(0, std::move(out));
    call.save(0, std::move(lse));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const Problem problem = problem_of(call, call.input(1).size(1));
    const Plan plan = plan_of(spec_, problem);
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2);
    const BorrowedTensor out = call.output(0), lse = call.saved(0);
    if (plan.method != Plan::Method::kSegments) {
      const Tensor bias = plan.method == Plan::Method::kMask ? bias_of(call, problem) : Tensor();
      Tensor dout = plan.has_padding ? aten_.clone(call.grad_output(0)) : call.grad_output(0).retain();
      if (plan.has_padding) zero_padding(problem, dout);
      auto gradients = attend_backward(dout, q, k, v, out, lse, plan.causal && !bias, bias);
      for (uint32_t i = 0; i < 3; ++i)
        if (call.wants_grad_input(i)) call.set_grad_input(i, packed(heads_first(gradients[i])));
      return;
    }
    for (uint32_t i = 0; i < 3; ++i) {
      call.set_grad_input(i, Tensor::create_like(call.host(), call.input(i)));
      if (plan.has_padding) aten_.zero_(call.grad_input(i));
    }
    for (const Segment& segment : plan.segments) {
      const auto gradients =
          attend_backward(part_of(call.grad_output(0), segment), part_of(q, segment), part_of(k, segment),
                          part_of(v, segment), part_of(out, segment), part_of(lse, segment), plan.causal, Tensor());
      for (uint32_t i = 0; i < 3; ++i) aten_.copy_(part_of(call.grad_input(i), segment), heads_first(gradients[i]));
    }
  }

 private:
  Tensor part_of(const BorrowedTensor& x, const Segment& segment) const {
    const Tensor rows = aten_.narrow(x, 0, segment.row, segment.rows);
    return aten_.narrow(rows, 1, segment.begin, segment.end - segment.begin);
  }

  std::array<Tensor, 2> attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                               const Tensor& bias) const {
    return aten_.flash_cpu.tensors<2>(q, k, v, 0.0, causal, bias, scale_);
  }

  std::array<Tensor, 3> attend_backward(const BorrowedTensor& dout, const BorrowedTensor& q, const BorrowedTensor& k,
                                        const BorrowedTensor& v, const BorrowedTensor& out, const BorrowedTensor& lse,
                                        bool causal, const Tensor& bias) const {
    return aten_.flash_cpu_backward.tensors<3>(heads_first(dout), heads_first(q), heads_first(k), heads_first(v),
                                               heads_first(out), heads_first(lse), 0.0, causal, bias, scale_);
  }

  Tensor bias_of(Call& call, const Problem& problem) const {
    const uint32_t dtype = call.input(0).dtype();
    const auto known = std::ranges::find_if(shared_.masks, [&](const MaskCache& mask) {
      return mask.spec == spec_ && mask.problem == problem && mask.bias.dtype() == dtype;
    });
    if (known != shared_.masks.end()) return known->bias.retain();
    const size_t kept = has_query_part_ ? Shared::kMaxMasks - 1 : 0;
    while (shared_.masks.size() > kept) shared_.masks.erase(shared_.masks.begin());
    const int64_t rows = problem.documents.empty() && problem.prefixes.empty() ? 1 : problem.batch;
    Tensor bias = Tensor::create(call.host(), dtype, {rows, 1, problem.time, problem.keys});
    const int64_t element = dtype_bytes(dtype);
    auto* data = static_cast<char*>(bias.view().data);
    const MinusInfinity hidden(dtype);
    parallel_for(call.host(), rows * problem.time, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        char* row = data + i * problem.keys * element;
        std::memset(row, 0, static_cast<size_t>(problem.keys * element));
        const int64_t b = i / problem.time, t = i % problem.time + problem.offset;
        for (int64_t s = 0; s < problem.keys; ++s)
          if (!sees(spec_, problem, b, t, s)) hidden.write(row + s * element);
      }
    });
    shared_.masks.push_back({spec_, problem, bias.retain()});
    return bias;
  }

  // Zeroes the padding positions of a contiguous [B, T, h, D].
  static void zero_padding(const Problem& problem, const BorrowedTensor& x) {
    const size_t row_bytes =
        static_cast<size_t>(x.num_elements() / (problem.batch * problem.time) * dtype_bytes(x.dtype()));
    for (int64_t b = 0; b < problem.batch; ++b)
      for (int64_t t = 0; t < problem.time; ++t)
        if (t + problem.offset < problem.keys && problem.documents[b * problem.keys + t + problem.offset] < 0)
          std::memset(static_cast<char*>(x.view().data) + static_cast<size_t>(b * problem.time + t) * row_bytes, 0,
                      row_bytes);
  }

  Shared& shared_;
  const bool has_query_part_;
};

}  // namespace

uint32_t sum_dtype(uint32_t dtype) { return dtype == CHASSIS_DTYPE_F64 ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32; }

std::unique_ptr<Kernel> make_cpu_kernel(Shared& shared, const NodeView& node) {
  return std::make_unique<CpuAttention>(shared, node.op(0));
}

}  // namespace sdpa
