// An adapter, and an op of its own, with one fault, which the environment variable NONCONFORMING selects and
// `plugins check` must find. Correct if the variable is not set.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "chassis/adapter.hpp"
#include "chassis/ops.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

constexpr const char* kOp = "nonconforming/identity";

bool has(std::string_view fault) {
  const char* chosen = std::getenv("NONCONFORMING");
  return chosen != nullptr && fault == chosen;
}

// W x + B identity(A x), for every linear but the head.
class Branches final : public Adapter {
 public:
  static constexpr std::string_view kDoc = "test: branches next to linears, with a fault";
  static constexpr std::string_view kId = "nonconforming_adapter";
  using Adapter::Adapter;

  void configure(std::string_view json) override {
    if (json.empty()) return;
    const bool is_own = json.find("nonconforming") != std::string_view::npos && json.front() == '{';
    if (!is_own && !has("takes any config")) fail_invalid("this is no config");
    has_config_ = true;
    if (has("refuses its config")) fail_invalid("not this one");
  }
  bool trains(const AdapterParameter& p) override { return has("trains a bias") && p.role == CHASSIS_ROLE_NORM; }
  void extend(const AdapterOp& op, AdapterBuilder& b) override {
    if (!op.is_linear() || op.role == CHASSIS_ROLE_HEAD || has("adds nothing")) return;
    if (has("refuses models")) fail_invalid("'", op.module, "' is not for me");
    static int num_calls = 0;
    const bool is_odd = (has("recorded anew") && num_calls++ % 5 == 0) || (has("another program") && has_config_);
    const Dim rank = b.dim("rank", 3);
    const Slot down = b.slot({is_odd ? "other" : "down",
                              {{rank}, op.weight_axes[1]},
                              CHASSIS_ROLE_WEIGHT,
                              CHASSIS_INIT_UNIFORM,
                              has("no number") ? 1e300 : 0.3});
    const Slot up = b.slot({"up",
                            {op.weight_axes[0], {rank}},
                            CHASSIS_ROLE_WEIGHT,
                            has("no identity") ? CHASSIS_INIT_NORMAL : CHASSIS_INIT_ZEROS,
                            0.3});
    const Value z = b.op("linear", "down", {op.input}, {down}, {}, {rank}, {kBatch, kTime, rank});
    const Value same = b.op(kOp, "same", {z}, {}, {}, z.dims, z.dims);
    const Value branch = b.op("linear", "up", {same}, {up}, {}, op.weight_axes[0], op.output.dims);
    if (has("reaches nothing")) return;
    b.replace_output(has("other dims") ? z : has("loses the base") ? branch : b.add(op.output, branch));
  }
  std::string config(std::string_view base, std::string_view) const override {
    if (has("no config")) return "rank";
    return "{\"adapter\": \"nonconforming\", \"peft_type\": \"" + std::string(has("no type") ? "other" : kId) +
           "\", \"base_model_name_or_path\": \"" + std::string(base) + "\"}";
  }
  void merge(const AdapterMerge& merge) const override {
    if (merge.parameter != "weight" || has("merges nothing")) return;
    const AdapterTensor &down = merge.tensor("down"), &up = merge.tensor("up");
    const int64_t rank = down.sizes.at(0), in = down.sizes.at(1);
    const int64_t first_row = has("merges from row 0") ? 0 : merge.row_begin;
    for (int64_t row = 0; row < merge.num_rows; ++row)
      for (int64_t column = 0; column < merge.num_columns; ++column)
        for (int64_t k = 0; k < rank; ++k)
          merge.values[static_cast<size_t>(row * merge.num_columns + column)] +=
              (has("merges half") ? 0.5f : 1.0f) * up.values[static_cast<size_t>((first_row + row) * rank + k)] *
              down.values[static_cast<size_t>(k * in + merge.column_begin + column)];
  }

 private:
  bool has_config_ = false;
};

class Identity final : public Ops {
 public:
  static constexpr std::string_view kDoc = "test: an op that returns its input, with a fault";
  static constexpr std::string_view kId = "nonconforming_adapter";
  static constexpr std::string_view kPatterns[] = {kOp};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({});
    if (node.input(0).dtype() != CHASSIS_DTYPE_F64) refuse("fp64 only");
    return 0;
  }
  void infer(const NodeView&, Infer&) override {}
  std::unique_ptr<Kernel> create_kernel(const NodeView&) override { return std::make_unique<Copy>(); }

 private:
  class Copy final : public Kernel {
   public:
    void forward(Call& call) override {
      const BorrowedTensor x = call.input(0);
      const BorrowedTensor y = call.make_output(0, CHASSIS_DTYPE_F64, {x.sizes().begin(), x.sizes().end()});
      std::copy_n(x.data<double>(), x.num_elements(), y.data<double>());
    }
    void backward_inputs(Call& call) override {
      const BorrowedTensor dy = call.grad_output(0);
      call.set_grad_input(0, Tensor::create(call.host(), CHASSIS_DTYPE_F64, dy.sizes()));
      for (int64_t i = 0; i < dy.num_elements(); ++i)
        call.grad_input(0).data<double>()[i] = dy.data<double>()[i] * (has("half a gradient") ? 0.5 : 1.0);
    }
  };
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nlicense=Apache-2.0\n", Branches, Identity)
