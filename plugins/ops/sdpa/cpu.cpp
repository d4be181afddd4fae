// LibTorch's flash kernel for the CPU, forward and backward. It supports grouped heads, so keys are not repeated.
#include <algorithm>
#include <cstring>

#include "chassis/task.hpp"
#include "cpu_kernel.hpp"
#include "segments.hpp"

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
    const uint64_t result = token_bytes(q) + token_bytes(lse);
    const uint64_t copied = token_bytes(q) + token_bytes(k) + token_bytes(v);
    for (const Group& group : groups_of(plan, call, result, copied + result)) {
      auto [part, part_lse] = attend(heads_first(part_of(call, q, group)), heads_first(part_of(call, k, group)),
                                     heads_first(part_of(call, v, group)), plan.causal, Tensor());
      write_part(call, heads_first(part), group, out);
      write_part(call, heads_first(part_lse), group, lse);
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
    const uint64_t result = token_bytes(q) + token_bytes(k) + token_bytes(v);
    const uint64_t copied = result + 2 * token_bytes(q) + token_bytes(lse);
    for (const Group& group : groups_of(plan, call, result, copied + result)) {
      const auto gradients = attend_backward(
          part_of(call, call.grad_output(0), group), part_of(call, q, group), part_of(call, k, group),
          part_of(call, v, group), part_of(call, out, group), part_of(call, lse, group), plan.causal, Tensor());
      for (uint32_t i = 0; i < 3; ++i) write_part(call, heads_first(gradients[i]), group, call.grad_input(i));
    }
  }

 private:
  static uint64_t token_bytes(const BorrowedTensor& x) {
    return static_cast<uint64_t>(x.num_elements() / (x.size(0) * x.size(1))) * dtype_bytes(x.dtype());
  }

  // Copies and results of a group exist until the next group. infer() has declared the results of a whole call, so the
  // more bytes a token of a group takes (`group_bytes`), the fewer tokens a group may have.
  std::vector<Group> groups_of(const Plan& plan, const Call& call, uint64_t result_bytes, uint64_t group_bytes) const {
    const BorrowedTensor q = call.input(0);
    constexpr double kFlopsPerNs = 35;  // as in claim()
    GroupLimits limits;
    limits.ns_of_pair = 4.0 * static_cast<double>(q.size(2) * q.size(3)) / kFlopsPerNs;
    limits.may_pad = plan.causal;
    limits.max_tokens = static_cast<int64_t>(static_cast<uint64_t>(q.size(0) * q.size(1)) * result_bytes / group_bytes);
    return group_segments(plan.segments, limits);
  }

  Tensor view_of(const BorrowedTensor& x, const Segment& segment) const {
    const Tensor rows = aten_.narrow(x, 0, segment.row, segment.rows);
    return aten_.narrow(rows, 1, segment.begin, segment.end - segment.begin);
  }

  // The group's segments of x [B, T, …] as [segments, length, …], with zeros after the shorter ones. In backward these
  // zeros add nothing to gradients, since the output's gradient is zero there, too.
  Tensor part_of(Call& call, const BorrowedTensor& x, const Group& group) const {
    if (group.segments.size() == 1) return view_of(x, group.segments[0]);
    Shape shape(x.sizes().begin(), x.sizes().end());
    shape[0] = static_cast<int64_t>(group.segments.size());
    shape[1] = group.length;
    Tensor part = Tensor::create(call.host(), x.dtype(), shape);
    const size_t bytes = token_bytes(x);
    const auto* from = static_cast<const char*>(x.view().data);
    auto* to = static_cast<char*>(part.view().data);
    for_segments(call, group, [&](size_t i, const Segment& segment) {
      char* const begin = to + i * static_cast<size_t>(group.length) * bytes;
      const size_t copied = static_cast<size_t>(segment.end - segment.begin) * bytes;
      std::memcpy(begin, from + static_cast<size_t>(segment.row * x.size(1) + segment.begin) * bytes, copied);
      std::memset(begin + copied, 0, static_cast<size_t>(group.length) * bytes - copied);
    });
    return part;
  }

  // Copies a part back to the group's segments of x, without the padding.
  void write_part(Call& call, Tensor part, const Group& group, const BorrowedTensor& x) const {
    if (group.segments.size() == 1) return void(aten_.copy_(view_of(x, group.segments[0]), part));
    const Tensor rows = packed(std::move(part));
    const size_t bytes = token_bytes(x);
    const auto* from = static_cast<const char*>(rows.view().data);
    auto* to = static_cast<char*>(x.view().data);
    for_segments(call, group, [&](size_t i, const Segment& segment) {
      std::memcpy(to + static_cast<size_t>(segment.row * x.size(1) + segment.begin) * bytes,
                  from + i * static_cast<size_t>(group.length) * bytes,
                  static_cast<size_t>(segment.end - segment.begin) * bytes);
    });
  }

  template <typename Body>
  static void for_segments(Call& call, const Group& group, Body&& body) {
    parallel_for(call.host(), static_cast<int64_t>(group.segments.size()), 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(static_cast<size_t>(i), group.segments[static_cast<size_t>(i)]);
    });
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
