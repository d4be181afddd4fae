// The narrow products of adapters: linears with the same input as one product, and a product added to another value in
// place.
#include <numeric>

#include "workspace.hpp"

namespace aten {
namespace {

// y_i = x · weight_iᵀ, computed by one product with all weights, stacked one below the other.
class LinearGroup : public AtenKernel {
 public:
  LinearGroup(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), planned_x_(node.input(0), node.output(0)) {
    for (int i = 0; i < node.num_outputs(); ++i) {
      planned_y_.emplace_back(node.output(i), node.input(0));
      columns_.push_back(node.param(i).size(0));
    }
    all_columns_ = std::accumulate(columns_.begin(), columns_.end(), int64_t{0});
  }

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Tensor weight = stacked_weights(call, x.dtype());
    const Tensor rows = matrix(x, weight.size(1)), all = create(call, x, x.dtype(), Shape{rows.size(0), all_columns_});
    multiply(all, rows, aten_.t(weight));
    int64_t begin = 0;
    for (uint32_t i = 0; i < columns_.size(); ++i) {
      const BorrowedTensor y = call.make_output(i, x.dtype(), planned_y_[i].in_call(x));
      aten_.copy_(matrix(y, columns_[i]), aten_.narrow(all, 1, begin, columns_[i]));
      begin += columns_[i];
    }
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor some = some_gradient(call);
    if (!some || !call.wants_grad_input(0)) return;
    const Tensor dy = joined_gradients(call, some), weight = stacked_weights(call, some.dtype());
    const bool add = static_cast<bool>(call.grad_input(0));
    if (!add) call.set_grad_input(0, create(call, some, some.dtype(), planned_x_.in_call(some)));
    accumulate_product(matrix(call.grad_input(0), weight.size(1)), add, dy, weight);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor some = some_gradient(call), x = call.input(0);
    if (!some) {
      for (uint32_t i = 0; i < columns_.size(); ++i)
        if (call.grad_param(i) && call.grad_param_beta(i) == 0) aten_.zero_(call.grad_param(i));
      return;
    }
    const int64_t in = call.param(0).size(1);
    const Tensor all = create(call, x, wide(x.dtype()), Shape{all_columns_, in});
    accumulate_product(all, 0, aten_.t(joined_gradients(call, some)), matrix(x, in));
    int64_t begin = 0;
    for (uint32_t i = 0; i < columns_.size(); ++i) {
      store_grad_param(call, i, aten_.narrow(all, 0, begin, columns_[i]));
      begin += columns_[i];
    }
  }

 private:
  BorrowedTensor some_gradient(const Call& call) const {
    for (uint32_t i = 0; i < columns_.size(); ++i)
      if (const BorrowedTensor dy = call.grad_output(i)) return dy;
    return {};
  }

  Tensor stacked_weights(const Call& call, uint32_t dtype) const {
    Tensor all = create(call, call.param(0), dtype, Shape{all_columns_, call.param(0).size(1)});
    int64_t begin = 0;
    for (uint32_t i = 0; i < columns_.size(); ++i) {
      aten_.copy_(aten_.narrow(all, 0, begin, columns_[i]), call.param(i));
      begin += columns_[i];
    }
    return all;
  }

  Tensor joined_gradients(const Call& call, const BorrowedTensor& like) const {
    const int64_t rows = like.size(0) * like.size(1);
    Tensor all = create(call, like, like.dtype(), Shape{rows, all_columns_});
    int64_t begin = 0;
    for (uint32_t i = 0; i < columns_.size(); ++i) {
      const Tensor part = aten_.narrow(all, 1, begin, columns_[i]);
      if (const BorrowedTensor dy = call.grad_output(i)) aten_.copy_(part, matrix(dy, columns_[i]));
      else aten_.zero_(part);
      begin += columns_[i];
    }
    return all;
  }

  PlannedSizes planned_x_;
  std::vector<PlannedSizes> planned_y_;
  std::vector<int64_t> columns_;
  int64_t all_columns_;
};

// y = b + factor · x · weightᵀ, written over b where the host lends its memory.
class LinearAdd : public AtenKernel {
 public:
  LinearAdd(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_x_(node.input(0), node.output(0)),
        factor_(node.num_ops() == 3 ? node.op(0).attr_float("factor") : 1.0) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), b = call.input(1);
    const Tensor weight = cast(call.param(0), x.dtype());
    const BorrowedTensor y = call.make_output(0, b.dtype(), b.sizes());
    const Tensor rows = matrix(x, weight.size(1)), sum = matrix(y, weight.size(0));
    if (y.view().data != b.view().data) aten_.copy_(y, b);
    multiply(sum, rows, aten_.t(weight), factor_, 1);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    store_grad_input(call, 1, dy.dtype(), dy.retain());
    if (!call.wants_grad_input(0)) return;
    const Tensor weight = cast(call.param(0), dy.dtype());
    const Tensor rows = matrix(dy, weight.size(0));
    const Tensor dx = create(call, dy, dy.dtype(), Shape{rows.size(0), weight.size(1)});
    multiply(dx, rows, weight, factor_);
    store_grad_input(call, 0, dy.dtype(), aten_.view(dx, planned_x_.in_call(dy)));
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), dweight = call.grad_param(0);
    if (!dweight) return;
    if (!dy) {
      if (call.grad_param_beta(0) == 0) aten_.zero_(dweight);
      return;
    }
    // The factor is applied to x, which has fewer columns.
    Tensor x = matrix(call.input(0), dweight.size(1));
    if (factor_ != 1) {
      const Tensor scaled = create(call, x, x.dtype(), shape_of(x));
      aten_.copy_(scaled, x);
      aten_.mul_scalar_(scaled, factor_);
      accumulate_product(dweight, call.grad_param_beta(0), aten_.t(matrix(dy, dweight.size(0))), scaled);
    } else {
      accumulate_product(dweight, call.grad_param_beta(0), aten_.t(matrix(dy, dweight.size(0))), x);
    }
  }

 private:
  PlannedSizes planned_x_;
  double factor_;
};

// Wide products gain nothing from being joined, and the copies of their weights cost more.
void check_linear_group(const NodeView& node) {
  bool is_group = node.num_inputs() == 1 && node.num_params() == node.num_ops() && node.num_outputs() == node.num_ops();
  for (int i = 0; is_group && i < node.num_ops(); ++i) is_group = node.raw().ops[i]->inputs[0] == node.raw().inputs[0];
  if (!is_group) refuse("joins linears of one input, without a bias, whose outputs are all used");
  int64_t columns = 0;
  for (int i = 0; i < node.num_params(); ++i) columns += node.param(i).size(0);
  if (4 * columns > node.param(0).size(1))
    refuse("computes ", columns, " columns of ", node.param(0).size(1),
           " features by separate products; it joins a quarter or less");
}

// The sum after a wide product may belong to a norm that follows.
void check_linear_add(const NodeView& node) {
  if (node.num_inputs() != 2 || node.num_outputs() != 1 || node.num_params() != 1)
    refuse("adds a product without a bias to another value, if it is used nowhere else");
  if (4 * node.param(0).size(1) > node.param(0).size(0))
    refuse("adds a product of ", node.param(0).size(1), " features to ", node.param(0).size(0),
           " columns in a second pass; in place if it has a quarter or less");
}

std::unique_ptr<Kernel> make_linear_group(const Operators& aten, const NodeView& node) {
  return std::make_unique<LinearGroup>(aten, node);
}

std::unique_ptr<Kernel> make_linear_add(const Operators& aten, const NodeView& node) {
  return std::make_unique<LinearAdd>(aten, node);
}

}  // namespace

std::span<const Entry> branch_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear+linear+linear",
       .make = make_linear_group,
       .keeps_inputs = 0b1,
       .passes = 1,
       .check = check_linear_group,
       .workspace = linear_group_workspace,
       .keeps_for_weight = true,
       .writes_inner = true},
      {.pattern = "linear+linear",
       .make = make_linear_group,
       .keeps_inputs = 0b1,
       .passes = 1,
       .check = check_linear_group,
       .workspace = linear_group_workspace,
       .keeps_for_weight = true,
       .writes_inner = true},
      {.pattern = "scale+linear+add",
       .make = make_linear_add,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b10,
       .passes = 1,
       .attrs = {"factor"},
       .check = check_linear_add,
       .workspace = linear_add_workspace,
       .keeps_for_weight = true},
      {.pattern = "linear+add",
       .make = make_linear_add,
       .keeps_inputs = 0b1,
       .overwrites_inputs = 0b10,
       .passes = 1,
       .check = check_linear_add,
       .workspace = linear_add_workspace,
       .keeps_for_weight = true},
  };
  return kEntries;
}

}  // namespace aten
