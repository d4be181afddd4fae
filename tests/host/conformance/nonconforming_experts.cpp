// The op grouped_linear in fp32 with a fault that the environment variable NONCONFORMING selects, and that only some
// choices of experts show. Correct if the variable is not set.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "chassis/experts.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

class Products final : public Kernel {
 public:
  void forward(Call& call) override {
    const Sizes s(call);
    const float *x = call.input(0).data<float>(), *weight = call.param(0).data<float>();
    float* const y = call.output(0).data<float>();
    zero_rest(y, s.rows, s.num_pairs, s.out);
    s.for_each([&](int64_t e, int64_t r, int64_t o) {
      float sum = 0;
      for (int64_t i = 0; i < s.in; ++i) sum += x[r * s.in + i] * weight[(e * s.out + o) * s.in + i];
      y[r * s.out + o] = sum;
    });
    if (is_wrong(s, call.input(1))) y[0] += 1;
  }
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    const Sizes s(call);
    call.set_grad_input(0, Tensor::create(call.host(), CHASSIS_DTYPE_F32, call.input(0).sizes()));
    const float* const weight = call.param(0).data<float>();
    float* const dx = call.grad_input(0).data<float>();
    std::fill_n(dx, s.num_pairs * s.in, 0.0f);
    s.for_each([&](int64_t e, int64_t r, int64_t o) {
      for (int64_t i = 0; i < s.in; ++i)
        dx[r * s.in + i] += dy.data<float>()[r * s.out + o] * weight[(e * s.out + o) * s.in + i];
    });
  }
  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0);
    if (!dweight) return;
    const Sizes s(call);
    const int64_t of_expert = s.out * s.in;
    float* const dw = dweight.data<float>();
    for (int64_t e = 0; e < s.rows.num_experts() && call.grad_param_beta(0) == 0; ++e)
      if (s.rows.begin(e) < s.rows.end(e) || !has("leaves empty experts as they are"))
        std::fill_n(dw + e * of_expert, of_expert, 0.0f);
    if (!dy) return;
    const float* const x = call.input(0).data<float>();
    s.for_each([&](int64_t e, int64_t r, int64_t o) {
      for (int64_t i = 0; i < s.in; ++i)
        dw[e * of_expert + o * s.in + i] += dy.data<float>()[r * s.out + o] * x[r * s.in + i];
    });
  }

 private:
  struct Sizes {
    explicit Sizes(Call& call)
        : num_pairs(call.input(1).num_elements()),
          out(call.param(0).size(1)),
          in(call.param(0).size(2)),
          rows(call.input(1).data<int32_t>(), num_pairs, call.param(0).size(0)) {}
    int64_t num_pairs, out, in;
    ExpertRows rows;

    template <typename Body>
    void for_each(Body&& body) const {
      for (int64_t e = 0; e < rows.num_experts(); ++e)
        for (int64_t r = rows.begin(e); r < rows.end(e); ++r)
          for (int64_t o = 0; o < out; ++o) body(e, r, o);
    }
  };

  static bool is_wrong(const Sizes& s, const BorrowedTensor& experts) {
    const int64_t num_experts = s.rows.num_experts(), num_rows = s.rows.num_rows();
    if (has("wrong for a single expert")) return num_experts == 1;
    if (has("wrong without rows")) return num_rows == 0;
    if (has("wrong for one token")) return experts.size(1) == 1;
    if (!has("wrong if one expert has all rows") || num_experts == 1) return false;
    for (int64_t e = 0; e < num_experts; ++e)
      if (num_rows > 0 && s.rows.end(e) - s.rows.begin(e) == num_rows) return true;
    return false;
  }
};

class Linears final : public Ops {
 public:
  static constexpr std::string_view kDoc = "test: the linears of experts, with a fault";
  static constexpr std::string_view kPatterns[] = {"grouped_linear"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({});
    if (node.device_type() != CHASSIS_DEVICE_CPU || node.input(0).dtype() != CHASSIS_DTYPE_F32 || node.has_param(1))
      refuse("fp32 on the CPU, without a bias");
    return 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS);
    if (node.training()) out.keeps_input(0).keeps_input(1);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { return std::make_unique<Products>(); }
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nlicense=Apache-2.0\n", Linears)
