// grouped_linear: a product for each expert that has rows. Rows of an expert are neighbours, so no row is copied.
#include <cstring>

#include "kernels.hpp"

namespace grouped {
namespace {

template <typename T>
class GroupedLinear final : public Kernel {
 public:
  explicit GroupedLinear(const NodeView& node)
      : planned_x_(node.input(0), node.input(1)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weight = call.param(0), bias = call.param(1);
    const Shapes s(experts, weight);
    T* const y = call.output(0).data<T>();
    Problems problems;
    for (int64_t e = 0; e < s.rows.num_experts(); ++e) {
      const int64_t begin = s.rows.begin(e), count = s.rows.end(e) - begin;
      if (count == 0) continue;
      if (bias)
        for (int64_t r = begin; r < begin + count; ++r)
          std::memcpy(y + r * s.out, bias.data<T>() + e * s.out, static_cast<size_t>(s.out) * sizeof(T));
      auto problem = gemm_problem(dtype_, dtype_, count, s.out, s.in);
      problem.flags = CHASSIS_GEMM_TRANSPOSE_B;
      problem.lda = problem.ldb = s.in, problem.ldc = s.out;
      problem.a = x.data<T>() + begin * s.in;
      problem.b = weight.data<T>() + e * s.out * s.in;
      problem.c = y + begin * s.out;
      problem.beta = bias ? 1.0f : 0.0f;
      problems.push_back(problem);
    }
    gemm(call.host(), problems);
    zero_rest(y, s.rows, s.num_pairs, s.out);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weight = call.param(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const Shapes s(experts, weight);
    const auto dx = grad_input<T>(call, 0, dtype_, planned_x_.in_call(experts));
    Problems problems;
    for (int64_t e = 0; e < s.rows.num_experts(); ++e) {
      const int64_t begin = s.rows.begin(e), count = s.rows.end(e) - begin;
      if (count == 0) continue;
      auto problem = gemm_problem(dtype_, dtype_, count, s.in, s.out);
      problem.lda = s.out, problem.ldb = problem.ldc = s.in;
      problem.a = dy.data<T>() + begin * s.out;
      problem.b = weight.data<T>() + e * s.out * s.in;
      problem.c = dx.data + begin * s.in;
      problem.beta = dx.adds ? 1.0f : 0.0f;
      problems.push_back(problem);
    }
    gemm(call.host(), problems);
    if (!dx.adds) zero_rest(dx.data, s.rows, s.num_pairs, s.in);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0), experts = call.input(1), weight = call.param(0);
    const BorrowedTensor dweight = call.grad_param(0), dbias = call.grad_param(1);
    const Shapes s(experts, weight);
    Problems problems;
    for (int64_t e = 0; e < s.rows.num_experts(); ++e) {
      const int64_t begin = s.rows.begin(e), count = dy ? s.rows.end(e) - begin : 0;
      if (dweight) add_weight(call, s, begin, count, dy, x, dweight.data<float>() + e * s.out * s.in, problems);
      if (dbias) add_bias(call, s, begin, count, dy, dbias.data<float>() + e * s.out);
    }
    gemm(call.host(), problems);
  }

 private:
  struct Shapes {
    Shapes(const BorrowedTensor& experts, const BorrowedTensor& weight)
        : rows(experts.data<int32_t>(), experts.num_elements(), weight.size(0)),
          num_pairs(experts.num_elements()),
          out(weight.size(1)),
          in(weight.size(2)) {}
    ExpertRows rows;
    int64_t num_pairs, out, in;
  };

  void add_weight(Call& call, const Shapes& s, int64_t begin, int64_t count, const BorrowedTensor& dy,
                  const BorrowedTensor& x, float* dweight, Problems& problems) const {
    const float beta = call.grad_param_beta(0);
    if (count == 0) {
      if (beta == 0) std::fill_n(dweight, s.out * s.in, 0.0f);
      return;
    }
    auto problem = gemm_problem(dtype_, CHASSIS_DTYPE_F32, s.out, s.in, count);
    problem.flags = CHASSIS_GEMM_TRANSPOSE_A;
    problem.lda = s.out, problem.ldb = problem.ldc = s.in;
    problem.a = dy.data<T>() + begin * s.out;
    problem.b = x.data<T>() + begin * s.in;
    problem.c = dweight;
    problem.beta = beta;
    problems.push_back(problem);
  }

  void add_bias(Call& call, const Shapes& s, int64_t begin, int64_t count, const BorrowedTensor& dy,
                float* dbias) const {
    if (call.grad_param_beta(1) == 0) std::fill_n(dbias, s.out, 0.0f);
    for (int64_t r = begin; r < begin + count; ++r)
      for (int64_t o = 0; o < s.out; ++o) dbias[o] += wide(dy.data<T>()[r * s.out + o]);
  }

  PlannedSizes planned_x_;
  uint32_t dtype_;
};

}  // namespace

std::unique_ptr<Kernel> make_linear(const NodeView& node) {
  return make_for<GroupedLinear>(node.input(0).dtype(), node);
}

}  // namespace grouped
