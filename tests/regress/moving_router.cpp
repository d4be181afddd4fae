// The op top_experts, which every call answers differently, as if noise had moved the logits since the last one: a pass
// that chooses again gives gradients to other experts.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Choice final : public Kernel {
 public:
  Choice(const NodeView& node, int64_t& num_calls) : num_chosen_(node.output(0).size(2)), num_calls_(num_calls) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), documents = call.input(1);
    const int64_t num_experts = logits.size(2), sizes[] = {logits.size(0), logits.size(1), num_chosen_};
    int32_t* chosen = call.make_output(0, CHASSIS_DTYPE_I32, sizes).data<int32_t>();
    const int64_t first = num_calls_++;
    for (int64_t t = 0; t < logits.size(0) * logits.size(1); ++t, chosen += num_chosen_) {
      const bool is_padding = documents && documents.data<int32_t>()[t] < 0;
      for (int64_t i = 0; i < num_chosen_; ++i)
        chosen[i] = is_padding ? -1 : static_cast<int32_t>((first + t + i) % num_experts);
      std::sort(chosen, chosen + num_chosen_);
    }
  }
  void backward_inputs(Call&) override {}  // a choice has no gradient

 private:
  const int64_t num_chosen_;
  int64_t& num_calls_;
};

class Router final : public Ops {
 public:
  static constexpr std::string_view kDoc = "test: a choice of experts that differs from call to call";
  static constexpr std::string_view kPatterns[] = {"top_experts"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({});
    return 0;
  }
  void infer(const NodeView&, Infer&) override {}
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return std::make_unique<Choice>(node, num_calls_);
  }

 private:
  int64_t num_calls_ = 0;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nlicense=Apache-2.0\n", Router)
