// grouped_linear and combine as one, also after a gated activation. The products of some rows are added to their tokens
// as soon as they are made, so they are never stored for all rows, nor are the activations. Backward needs no product:
// with g = dy · weight[e], the gradient of a row is its weight times g, and that of the weight is g · row + dy · bias.
#include <cstring>
#include <optional>

#include "kernels.hpp"

namespace grouped {

int64_t rows_at_once(const OperandView& weight) {
  // About 4 MiB of products at once, and enough rows for a product to run at its speed.
  constexpr int64_t kSpanBytes = int64_t{4} << 20, kLeastRows = 64;
  const int64_t row_bytes = static_cast<int64_t>(sizeof(float)) * std::max(weight.size(1), weight.size(2));
  return std::max(kLeastRows, kSpanBytes / row_bytes);
}

namespace {

template <typename T>
class CombinedLinear final : public Kernel {
 public:
  explicit CombinedLinear(const NodeView& node)
      : is_gated_(node.op(0).id() == "gated_activation"),
        rows_at_once_(rows_at_once(node.param(0))),
        planned_x_(node.input(0), node.input(experts_at())),
        dtype_(node.input(0).dtype()) {
    if (!is_gated_) return;
    const bool gelu = node.op(0).attr_string("function") == "gelu_tanh";
    activate_ = gelu ? row_loops<T>().gelu_tanh_mul : row_loops<T>().silu_mul;
    activate_backward_ = gelu ? row_loops<T>().gelu_tanh_mul_backward : row_loops<T>().silu_mul_backward;
  }

  void forward(Call& call) override {
    const Operands o(call, experts_at());
    const int64_t num_tokens = o.num_pairs / o.k;
    T* const y = call.output(0).data<T>();
    std::optional<Scratch<float>> wide_sums;
    float* sums;
    if constexpr (std::is_same_v<T, float>)
      sums = y;
    else
      sums = wide_sums.emplace(call.host(), num_tokens * o.out).data();
    parallel_for(call.host(), num_tokens, row_grain(o.out),
                 [&](int64_t begin, int64_t end) { std::fill(sums + begin * o.out, sums + end * o.out, 0.0f); });
    Scratch<float> products(call.host(), most_rows(o) * o.out);
    const Activations activations(*this, call, o);
    for_spans(o, [&](const Span& span) {
      const T* const x = activations.of(span);
      Problems problems;
      for (const Part& part : span.parts) {
        auto problem = gemm_problem(dtype_, CHASSIS_DTYPE_F32, part.count, o.out, o.in);
        problem.flags = CHASSIS_GEMM_TRANSPOSE_B;
        problem.lda = problem.ldb = o.in, problem.ldc = o.out;
        problem.a = x + (part.begin - span.begin) * o.in;
        problem.b = o.weight_of(part.expert);
        problem.c = products.data() + (part.begin - span.begin) * o.out;
        problems.push_back(problem);
      }
      gemm(call.host(), problems);
      // A token's rows are added in the order of its experts by one thread.
      parallel_for(call.host(), num_tokens, row_grain(o.out), [&](int64_t first, int64_t last) {
        for (int64_t pair = first * o.k; pair < last * o.k; ++pair) {
          const int64_t row = o.rows.row(pair);
          if (row < span.begin || row >= span.begin + span.count) continue;
          float* const sum = sums + pair / o.k * o.out;
          const float factor = o.factor(row);
          row_loops<float>().add_scaled(products.data() + (row - span.begin) * o.out, factor, sum, o.out);
          if (o.bias) row_loops<T>().add_scaled(o.bias_of(o.expert(pair)), factor, sum, o.out);
        }
      });
    });
    if constexpr (!std::is_same_v<T, float>)
      parallel_for(call.host(), num_tokens, row_grain(o.out), [&](int64_t begin, int64_t end) {
        row_loops<T>().scale_wide(sums + begin * o.out, 1.0f, y + begin * o.out, false, (end - begin) * o.out);
      });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    const bool wants_dup = is_gated_ && call.wants_grad_input(1), wants_dx = call.wants_grad_input(0) || wants_dup;
    const Operands o(call, experts_at());
    const uint32_t weights_at = experts_at() + 1;
    const bool wants_dw = o.weights && call.wants_grad_input(weights_at);
    if (!dy || (!wants_dx && !wants_dw)) return;
    GradInput<T> dx, dup;  // or dgate and dup
    GradInput<float> dw;
    if (call.wants_grad_input(0)) dx = grad_input<T>(call, 0, dtype_, planned_x_.in_call(o.experts));
    if (wants_dup) dup = grad_input<T>(call, 1, dtype_, planned_x_.in_call(o.experts));
    if (wants_dw) dw = grad_input<float>(call, weights_at, CHASSIS_DTYPE_F32, o.weights.sizes());
    if (wants_dw && !dw.adds) std::fill_n(dw.data, o.num_pairs, 0.0f);
    Scratch<T> dys(call.host(), most_rows(o) * o.out);
    Scratch<float> products(call.host(), most_rows(o) * o.in);
    const Activations activations(*this, call, o);
    for_spans(o, [&](const Span& span) {
      const T* const x = wants_dw ? activations.of(span) : nullptr;
      parallel_for(call.host(), span.count, row_grain(o.out), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r)
          std::memcpy(dys.data() + r * o.out, dy.data<T>() + o.token(span.begin + r) * o.out,
                      static_cast<size_t>(o.out) * sizeof(T));
      });
      Problems problems;
      for (const Part& part : span.parts) {
        auto problem = gemm_problem(dtype_, CHASSIS_DTYPE_F32, part.count, o.in, o.out);
        problem.lda = o.out, problem.ldb = problem.ldc = o.in;
        problem.a = dys.data() + (part.begin - span.begin) * o.out;
        problem.b = o.weight_of(part.expert);
        problem.c = products.data() + (part.begin - span.begin) * o.in;
        problems.push_back(problem);
      }
      gemm(call.host(), problems);
      parallel_for(call.host(), span.count, row_grain(o.in), [&](int64_t first, int64_t last) {
        std::vector<T> unwanted(static_cast<size_t>(is_gated_ ? o.in : 0));
        const auto row_of = [&](const GradInput<T>& of, int64_t row) {
          return of.data ? of.data + row * o.in : unwanted.data();
        };
        for (int64_t r = first; r < last; ++r) {
          const int64_t row = span.begin + r;
          float* const product = products.data() + r * o.in;
          if (wants_dw) {
            float sum = row_loops<T>().dot_wide(product, x + r * o.in, o.in);
            if (o.bias) sum += row_loops<T>().dot(dys.data() + r * o.out, o.bias_of(o.expert(o.rows.pair(row))), o.out);
            dw.store(o.rows.pair(row), sum);
          }
          if (!wants_dx) continue;
          if (!is_gated_) {
            row_loops<T>().scale_wide(product, o.factor(row), dx.data + row * o.in, dx.adds, o.in);
            continue;
          }
          row_loops<float>().scale(product, o.factor(row), product, false, o.in);
          activate_backward_(product, o.x.template data<T>() + row * o.in, o.up.template data<T>() + row * o.in,
                             row_of(dx, row), row_of(dup, row), o.in);
        }
      });
    });
    for (const GradInput<T>* gradient : {&dx, &dup})
      if (gradient->data && !gradient->adds) zero_rest(gradient->data, o.rows, o.num_pairs, o.in);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0), dbias = call.grad_param(1);
    const Operands o(call, experts_at());
    Scratch<T> dys(call.host(), most_rows(o) * o.out);
    for (int64_t e = 0; e < o.rows.num_experts(); ++e)
      if (!dy || o.rows.begin(e) == o.rows.end(e)) {
        if (dweight && call.grad_param_beta(0) == 0)
          std::fill_n(dweight.data<float>() + e * o.out * o.in, o.out * o.in, 0.0f);
        if (dbias && call.grad_param_beta(1) == 0) std::fill_n(dbias.data<float>() + e * o.out, o.out, 0.0f);
      }
    if (!dy) return;
    const Activations activations(*this, call, o);
    for_spans(o, [&](const Span& span) {
      const T* const x = dweight ? activations.of(span) : nullptr;
      parallel_for(call.host(), span.count, row_grain(o.out), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r)
          row_loops<T>().scale(dy.data<T>() + o.token(span.begin + r) * o.out, o.factor(span.begin + r),
                               dys.data() + r * o.out, false, o.out);
      });
      Problems problems;
      for (const Part& part : span.parts) {
        const bool is_first = part.begin == o.rows.begin(part.expert);
        const T* const gradients = dys.data() + (part.begin - span.begin) * o.out;
        if (dweight) {
          auto problem = gemm_problem(dtype_, CHASSIS_DTYPE_F32, o.out, o.in, part.count);
          problem.flags = CHASSIS_GEMM_TRANSPOSE_A;
          problem.lda = o.out, problem.ldb = problem.ldc = o.in;
          problem.a = gradients;
          problem.b = x + (part.begin - span.begin) * o.in;
          problem.c = dweight.data<float>() + part.expert * o.out * o.in;
          problem.beta = is_first ? call.grad_param_beta(0) : 1.0f;
          problems.push_back(problem);
        }
        if (!dbias) continue;
        float* const sum = dbias.data<float>() + part.expert * o.out;
        if (is_first && call.grad_param_beta(1) == 0) std::fill_n(sum, o.out, 0.0f);
        for (int64_t r = 0; r < part.count; ++r) row_loops<T>().add_scaled(gradients + r * o.out, 1.0f, sum, o.out);
      }
      gemm(call.host(), problems);
    });
  }

 private:
  struct Operands {
    Operands(Call& call, uint32_t experts_at)
        : x(call.input(0)),
          up(call.input(1)),
          experts(call.input(experts_at)),
          weights(call.input(experts_at + 1)),
          weight(call.param(0)),
          bias(call.param(1)),
          num_pairs(experts.num_elements()),
          k(experts.size(2)),
          out(weight.size(1)),
          in(weight.size(2)),
          rows(experts.data<int32_t>(), num_pairs, weight.size(0)) {}

    const T* weight_of(int64_t e) const { return weight.data<T>() + e * out * in; }
    const T* bias_of(int64_t e) const { return bias.data<T>() + e * out; }
    int64_t token(int64_t row) const { return rows.pair(row) / k; }
    int64_t expert(int64_t pair) const { return experts.data<int32_t>()[pair]; }
    float factor(int64_t row) const { return weights ? weights.data<float>()[rows.pair(row)] : 1.0f; }

    BorrowedTensor x;   // the rows, or the gate of the activation
    BorrowedTensor up;  // of the activation
    BorrowedTensor experts, weights, weight, bias;
    int64_t num_pairs, k, out, in;
    ExpertRows rows;
  };

  // Neighbouring rows of an expert, and those of several experts.
  struct Part {
    int64_t expert, begin, count;
  };
  struct Span {
    int64_t begin, count;
    std::vector<Part> parts;
  };

  // The rows that are multiplied: input 0, or what a gated activation makes of inputs 0 and 1.
  class Activations {
   public:
    Activations(const CombinedLinear& kernel, Call& call, const Operands& o) : kernel_(kernel), call_(call), o_(o) {
      if (kernel.is_gated_) rows_.emplace(call.host(), kernel.most_rows(o) * o.in);
    }
    // Valid until the next call.
    const T* of(const Span& span) const {
      const T* const x = o_.x.template data<T>() + span.begin * o_.in;
      if (!rows_) return x;
      const T* const up = o_.up.template data<T>() + span.begin * o_.in;
      parallel_for(call_.host(), span.count * o_.in, 16384, [&](int64_t begin, int64_t end) {
        kernel_.activate_(x + begin, up + begin, rows_->data() + begin, end - begin);
      });
      return rows_->data();
    }

   private:
    const CombinedLinear& kernel_;
    Call& call_;
    const Operands& o_;
    std::optional<Scratch<T>> rows_;
  };

  uint32_t experts_at() const { return is_gated_ ? 2 : 1; }
  int64_t most_rows(const Operands& o) const { return std::min(rows_at_once_, o.num_pairs); }

  // Calls visit(span) for spans that cover all rows in order.
  template <typename Visit>
  void for_spans(const Operands& o, Visit&& visit) const {
    int64_t expert = 0;
    for (int64_t begin = 0; begin < o.rows.num_rows(); begin += rows_at_once_) {
      const int64_t end = std::min(begin + rows_at_once_, o.rows.num_rows());
      Span span{begin, end - begin, {}};
      for (int64_t row = begin; row < end; row = span.parts.back().begin + span.parts.back().count) {
        while (o.rows.end(expert) <= row) ++expert;
        span.parts.push_back({expert, row, std::min(end, o.rows.end(expert)) - row});
      }
      visit(span);
    }
  }

  bool is_gated_;
  int64_t rows_at_once_;
  PlannedSizes planned_x_;
  uint32_t dtype_;
  decltype(RowLoops<T>::silu_mul) activate_ = nullptr;
  decltype(RowLoops<T>::silu_mul_backward) activate_backward_ = nullptr;
};

}  // namespace

std::unique_ptr<Kernel> make_combined_linear(const NodeView& node) {
  return make_for<CombinedLinear>(node.input(0).dtype(), node);
}

}  // namespace grouped
