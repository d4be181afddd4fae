// Attention over some keys of a row, on the CPU (key_part in chassis/op.h). LibTorch's kernel needs a key for every
// query, so queries that see none here run with all keys, and their results are replaced.
#include <cmath>
#include <cstring>

#include "chassis/task.hpp"
#include "cpu_kernel.hpp"

namespace sdpa {
namespace {

class PartialAttention final : public CpuKernel {
 public:
  PartialAttention(Shared& shared, const OpView& op) : CpuKernel(shared.aten, op) {}

  void forward(Call& call) override {
    const Part part(call);
    const Visible visible = visible_of(call, part);
    const BorrowedTensor q = call.input(0);
    const Tensor bias = visible.all ? Tensor() : bias_of(call, part, visible, false);
    const auto [out, log_sum] = aten_.flash_cpu.tensors<2>(heads_first(q), heads_first(call.input(1)),
                                                           heads_first(call.input(2)), 0.0, false, bias, scale_);
    Tensor rows = packed(heads_first(out)), sums = packed(log_sum.retain());
    if (!visible.all) replace_unseen(part, visible, rows, sums);
    call.set_output(0, std::move(rows));
    call.save(0, std::move(sums));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const Part part(call);
    const Visible visible = visible_of(call, part);
    const Tensor bias = visible.all ? Tensor() : bias_of(call, part, visible, true);
    const auto gradients = aten_.flash_cpu_backward.tensors<3>(
        heads_first(call.grad_output(0)), heads_first(call.input(0)), heads_first(call.input(1)),
        heads_first(call.input(2)), heads_first(call.output(0)), call.saved(0), 0.0, false, bias, scale_);
    for (uint32_t i = 0; i < 3; ++i)
      if (call.wants_grad_input(i)) call.set_grad_input(i, packed(heads_first(gradients[i])));
  }

 private:
  // Sizes and places of a call.
  struct Part {
    int64_t batch, time, heads, keys, query_offset, key_offset, num_positions;

    explicit Part(const Call& call)
        : batch(call.input(0).size(0)),
          time(call.input(0).size(1)),
          heads(call.input(0).size(2)),
          keys(call.input(1).size(1)),
          query_offset(call.query_offset()),
          key_offset(call.key_offset()),
          num_positions(call.num_positions()) {}
  };
  // Whether each query sees each key, [batch, time, keys], and whether it sees any, [batch, time].
  struct Visible {
    std::vector<uint8_t> pairs, any;
    bool all = true;
  };

  Visible visible_of(Call& call, const Part& part) const {
    const Problem problem = problem_of(call, part.num_positions);
    Visible out;
    out.pairs.resize(static_cast<size_t>(part.batch * part.time * part.keys));
    out.any.resize(static_cast<size_t>(part.batch * part.time));
    parallel_for(call.host(), part.batch * part.time, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / part.time, t = part.query_offset + i % part.time;
        for (int64_t s = 0; s < part.keys; ++s) {
          const int64_t at = part.key_offset + s;
          const bool is_padding = t >= part.num_positions || at >= part.num_positions ||
                                  (!problem.documents.empty() && problem.documents[b * part.num_positions + t] < 0);
          const bool sees_it = !is_padding && sees(spec_, problem, b, t, at);
          out.pairs[static_cast<size_t>(i * part.keys + s)] = sees_it;
          out.any[static_cast<size_t>(i)] |= sees_it;
        }
      }
    });
    for (const uint8_t pair : out.pairs) out.all &= pair != 0;
    return out;
  }

  // 0, or -inf where a key is hidden. In forward, a query that sees none sees all.
  Tensor bias_of(Call& call, const Part& part, const Visible& visible, bool backward) const {
    const uint32_t dtype = call.input(0).dtype();
    const auto element = static_cast<size_t>(dtype_bytes(dtype));
    Tensor bias = Tensor::create(call.host(), dtype, {part.batch, 1, part.time, part.keys});
    auto* const data = static_cast<char*>(bias.view().data);
    std::memset(data, 0, visible.pairs.size() * element);
    const MinusInfinity hidden(dtype);
    const auto keys = static_cast<size_t>(part.keys);
    for (size_t i = 0; i < visible.pairs.size(); ++i)
      if (visible.pairs[i] == 0 && (backward || visible.any[i / keys] != 0)) hidden.write(data + i * element);
    return bias;
  }

  static void replace_unseen(const Part& part, const Visible& visible, const Tensor& rows, const Tensor& sums) {
    const size_t row_bytes =
        static_cast<size_t>(rows.num_elements() / (part.batch * part.time) * dtype_bytes(rows.dtype()));
    for (int64_t i = 0; i < part.batch * part.time; ++i) {
      if (visible.any[static_cast<size_t>(i)] != 0) continue;
      std::memset(static_cast<char*>(rows.view().data) + static_cast<size_t>(i) * row_bytes, 0, row_bytes);
      for (int64_t h = 0; h < part.heads; ++h)
        sums.data<float>()[(i / part.time * part.heads + h) * part.time + i % part.time] = -INFINITY;
    }
  }
};

}  // namespace

std::unique_ptr<Kernel> make_partial_kernel(Shared& shared, const NodeView& node) {
  return std::make_unique<PartialAttention>(shared, node.op(0));
}

}  // namespace sdpa
