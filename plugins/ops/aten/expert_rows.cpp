// dispatch, grouped_linear and combine: rows sorted by expert, and a product for each expert that has rows.
#include <limits>

#include "chassis/experts.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

constexpr int64_t kNoExpert = std::numeric_limits<int32_t>::max();  // sorts after every expert

// Copies and sums between tokens and rows. Nothing is added by atomics, so that two runs have the same bits.
class RowKernel : public AtenKernel {
 protected:
  using AtenKernel::AtenKernel;

  // A pair is a token with one of its experts.
  struct Order {
    Tensor pairs;    // i64 [pairs]: the pair of each row
    Tensor is_rest;  // bool [pairs, 1]: rows that no expert has, which come last
  };
  Order order_of(const BorrowedTensor& experts) const {
    const int64_t pairs = experts.num_elements();
    const Tensor keys = aten_.to_dtype(aten_.view(experts, Shape{pairs}), DtypeArg{CHASSIS_DTYPE_I32}, false, true);
    aten_.masked_fill_(keys, aten_.lt_scalar(keys, 0), kNoExpert);
    auto [sorted, order] = aten_.sort_stable.tensors<2>(keys, true, 0, false);
    return {std::move(order), aten_.view(aten_.eq_scalar(sorted, kNoExpert), Shape{pairs, 1})};
  }
  // i64 [tokens, k]: the row of each pair.
  Tensor rows_of(const Call& call, const BorrowedTensor& experts) const {
    const Tensor pairs = order_of(experts).pairs;
    const Tensor count = create(call, experts, CHASSIS_DTYPE_I64, Shape{experts.num_elements()}),
                 rows = create(call, experts, CHASSIS_DTYPE_I64, Shape{experts.num_elements()});
    aten_.arange_out(experts.num_elements(), count);
    aten_.scatter_(rows, 0, pairs, count);
    return matrix(rows, experts.size(-1));
  }

  // to[r] = weight · tokens[t] for the pair of each row; zeros for the rest.
  void spread(const BorrowedTensor& to, bool adds, const BorrowedTensor& tokens, const BorrowedTensor& experts,
              const BorrowedTensor& weights) const {
    const uint32_t dtype = wide(tokens.dtype());
    const Order order = order_of(experts);
    const Tensor token = aten_.floor_divide(order.pairs, experts.size(-1));
    if (!weights && !adds) {
      aten_.index_select_out(tokens, 0, token, to);
      aten_.masked_fill_(to, order.is_rest, 0);
      return;
    }
    Tensor factors;
    if (weights) {
      factors = column(aten_.index_select(cast(column(weights), dtype), 0, order.pairs));
      aten_.masked_fill_(factors, order.is_rest, 0);
    }
    for_slabs(to.size(0), to.size(1), [&](int64_t begin, int64_t rows) {
      const Tensor part = selected(tokens, aten_.narrow(token, 0, begin, rows));
      if (weights)
        aten_.mul_(part, aten_.narrow(factors, 0, begin, rows));
      else
        aten_.masked_fill_(part, aten_.narrow(order.is_rest, 0, begin, rows), 0);
      accumulate(aten_.narrow(to, 0, begin, rows), adds ? 1 : 0, part);
    });
  }

  // to[t] = Σ weight · rows[r] over the pairs of each token, in ascending order of experts, rounded once.
  void sum(const Call& call, const BorrowedTensor& to, bool adds, const BorrowedTensor& rows,
           const BorrowedTensor& experts, const BorrowedTensor& weights) const {
    const int64_t k = experts.size(-1);
    const Tensor row = rows_of(call, experts), is_none = aten_.lt_scalar(matrix(experts, k), 0);
    Tensor factors;
    if (weights) {
      factors = aten_.to_dtype(matrix(weights, k), DtypeArg{wide(rows.dtype())}, false, true);
      aten_.masked_fill_(factors, is_none, 0);
    }
    for_slabs(to.size(0), to.size(1), [&](int64_t begin, int64_t tokens) {
      const auto part_of = [&](const Tensor& of_pairs, int64_t j) {
        return aten_.narrow(aten_.narrow(of_pairs, 1, j, 1), 0, begin, tokens);
      };
      Tensor all;
      for (int64_t j = 0; j < k; ++j) {
        Tensor part = selected(rows, aten_.view(part_of(row, j), Shape{tokens}));
        if (!weights) aten_.masked_fill_(part, part_of(is_none, j), 0);
        if (j > 0 && weights)
          aten_.addcmul_(all, part, part_of(factors, j));
        else if (j > 0)
          aten_.add_(all, part);
        else if (weights)
          aten_.mul_(part, part_of(factors, j));
        if (j == 0) all = std::move(part);
      }
      accumulate(aten_.narrow(to, 0, begin, tokens), adds ? 1 : 0, all);
    });
  }

  // Stores the gradient of the weights, input 2: the product of the pair's row with its token.
  void store_grad_weights(Call& call, const BorrowedTensor& rows, const BorrowedTensor& tokens) const {
    const BorrowedTensor experts = call.input(1), weights = call.input(2);
    if (!weights || !call.wants_grad_input(2)) return;
    const int64_t k = experts.size(-1);
    const uint32_t dtype = wide(rows.dtype());
    const Tensor row = rows_of(call, experts), all = create(call, rows, dtype, Shape{tokens.size(0), k});
    for_slabs(tokens.size(0), tokens.size(1), [&](int64_t begin, int64_t count) {
      const Tensor token = cast(aten_.narrow(tokens, 0, begin, count), dtype);
      for (int64_t j = 0; j < k; ++j) {
        const Tensor index = aten_.narrow(aten_.narrow(row, 1, j, 1), 0, begin, count);
        const Tensor part = selected(rows, aten_.view(index, Shape{count}));
        aten_.mul_(part, token);
        aten_.copy_(aten_.narrow(aten_.narrow(all, 1, j, 1), 0, begin, count), aten_.sum_dims(part, Shape{-1}, true));
      }
    });
    aten_.masked_fill_(all, aten_.lt_scalar(matrix(experts, k), 0), 0);
    store_grad_input(call, 2, weights.dtype(), aten_.view(all, weights.sizes()));
  }

  // The gradient of input 0, as a matrix: the one that the host passes, or a new one.
  Tensor make_grad_input(Call& call, const BorrowedTensor& like, const Shape& shape, int64_t columns) const {
    if (!call.grad_input(0)) call.set_grad_input(0, create(call, like, like.dtype(), shape));
    return matrix(call.grad_input(0), columns);
  }

 private:
  Tensor column(const BorrowedTensor& x) const { return aten_.view(x, Shape{x.num_elements(), 1}); }
  // A copy of these rows in the dtype of sums.
  Tensor selected(const BorrowedTensor& rows, const Tensor& index) const {
    return cast(aten_.index_select(rows, 0, index), wide(rows.dtype()));
  }
};

class Dispatch : public RowKernel {
 public:
  Dispatch(const Operators& aten, const NodeView& node)
      : RowKernel(aten), planned_x_(node.input(0), node.output(0)), planned_y_(node.output(0), node.input(1)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1);
    const BorrowedTensor y = call.make_output(0, x.dtype(), planned_y_.in_call(experts));
    const int64_t columns = y.num_elements() / experts.num_elements();
    spread(matrix(y, columns), false, matrix(x, columns), experts, call.input(2));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1);
    if (!dy) return;
    const int64_t columns = dy.num_elements() / experts.num_elements();
    const Tensor rows = matrix(dy, columns);
    if (call.wants_grad_input(0)) {
      const bool adds = static_cast<bool>(call.grad_input(0));
      sum(call, make_grad_input(call, dy, planned_x_.in_call(experts), columns), adds, rows, experts, call.input(2));
    }
    if (call.wants_grad_input(2)) store_grad_weights(call, rows, matrix(call.input(0), columns));
  }

 private:
  PlannedSizes planned_x_, planned_y_;
};

class Combine : public RowKernel {
 public:
  Combine(const Operators& aten, const NodeView& node)
      : RowKernel(aten), planned_rows_(node.input(0), node.input(1)), planned_y_(node.output(0), node.input(1)) {}

  void forward(Call& call) override {
    const BorrowedTensor rows = call.input(0), experts = call.input(1);
    const BorrowedTensor y = call.make_output(0, rows.dtype(), planned_y_.in_call(experts));
    const int64_t columns = rows.num_elements() / experts.num_elements();
    sum(call, matrix(y, columns), false, matrix(rows, columns), experts, call.input(2));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1);
    if (!dy) return;
    const int64_t columns = dy.num_elements() * experts.size(-1) / experts.num_elements();
    const Tensor tokens = matrix(dy, columns);
    if (call.wants_grad_input(0)) {
      const bool adds = static_cast<bool>(call.grad_input(0));
      spread(make_grad_input(call, dy, planned_rows_.in_call(experts), columns), adds, tokens, experts, call.input(2));
    }
    if (call.wants_grad_input(2)) store_grad_weights(call, matrix(call.input(0), columns), tokens);
  }

 private:
  PlannedSizes planned_rows_, planned_y_;
};

class GroupedLinear : public AtenKernel {
 public:
  GroupedLinear(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), planned_x_(node.input(0), node.input(1)), planned_y_(node.output(0), node.input(1)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), experts = call.input(1), weight = call.param(0), bias = call.param(1);
    const Tensor rows = matrix(x, weight.size(2)),
                 y = matrix(call.make_output(0, x.dtype(), planned_y_.in_call(experts)), weight.size(1));
    const int64_t num_rows = for_groups(experts, weight.size(0), [&](int64_t e, int64_t begin, int64_t count) {
      if (count == 0) return;
      const Tensor out = aten_.narrow(y, 0, begin, count);
      if (bias) aten_.copy_(out, aten_.select(bias, 0, e));
      multiply(out, aten_.narrow(rows, 0, begin, count), aten_.t(cast(aten_.select(weight, 0, e), x.dtype())), 1,
               bias ? 1 : 0);
    });
    zero_rest(y, num_rows);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1), weight = call.param(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) call.set_grad_input(0, create(call, dy, dy.dtype(), planned_x_.in_call(experts)));
    const Tensor rows = matrix(dy, weight.size(1)), dx = matrix(call.grad_input(0), weight.size(2));
    const int64_t num_rows = for_groups(experts, weight.size(0), [&](int64_t e, int64_t begin, int64_t count) {
      if (count == 0) return;
      accumulate_product(aten_.narrow(dx, 0, begin, count), adds, aten_.narrow(rows, 0, begin, count),
                         cast(aten_.select(weight, 0, e), dy.dtype()));
    });
    if (!adds) zero_rest(dx, num_rows);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), experts = call.input(1);
    const BorrowedTensor buffers[] = {call.grad_param(0), call.grad_param(1)};
    if (!dy) {
      for (uint32_t i = 0; i < 2; ++i)
        if (buffers[i] && call.grad_param_beta(i) == 0) aten_.zero_(buffers[i]);
      return;
    }
    const BorrowedTensor weight = call.param(0);
    const Tensor all_dy = matrix(dy, weight.size(1));
    for_groups(experts, weight.size(0), [&](int64_t e, int64_t begin, int64_t count) {
      for (uint32_t i = 0; i < 2; ++i) {
        if (!buffers[i]) continue;
        const Tensor buffer = aten_.select(buffers[i], 0, e);
        const double beta = call.grad_param_beta(i);
        if (count == 0) {
          if (beta == 0) aten_.zero_(buffer);
          continue;
        }
        const Tensor rows = aten_.narrow(all_dy, 0, begin, count);
        if (i == 0)
          accumulate_product(buffer, beta, aten_.t(rows),
                             aten_.narrow(matrix(call.input(0), weight.size(2)), 0, begin, count));
        else
          accumulate(buffer, beta, aten_.sum_dims(rows, Shape{0}, false, DtypeArg{buffer.dtype()}));
      }
    });
  }

 private:
  // Calls body(expert, first row, number of rows) for each expert. Returns the number of rows.
  // The products need the counts on the host: on CUDA each call waits for the stream and copies B·T·k i32.
  template <typename Body>
  int64_t for_groups(const BorrowedTensor& experts, int64_t num_experts, Body&& body) const {
    const int64_t pairs = experts.num_elements();
    Tensor on_host = aten_.view(experts, Shape{pairs});
    if (!experts.is_cpu()) {
      on_host = Tensor::create(aten_.host, CHASSIS_DTYPE_I32, {pairs});
      aten_.copy_(on_host, aten_.view(experts, Shape{pairs}));
    }
    std::vector<int64_t> counts(static_cast<size_t>(num_experts));
    const int32_t* const ids = on_host.data<int32_t>();
    for (int64_t p = 0; p < pairs; ++p) {
      check_expert(ids[p], num_experts);
      if (ids[p] >= 0) ++counts[static_cast<size_t>(ids[p])];
    }
    int64_t begin = 0;
    for (int64_t e = 0; e < num_experts; begin += counts[static_cast<size_t>(e++)])
      body(e, begin, counts[static_cast<size_t>(e)]);
    return begin;
  }
  void zero_rest(const Tensor& rows, int64_t num_rows) const {
    if (num_rows < rows.size(0)) aten_.zero_(aten_.narrow(rows, 0, num_rows, rows.size(0) - num_rows));
  }

  PlannedSizes planned_x_, planned_y_;
};

std::unique_ptr<Kernel> make_dispatch(const Operators& aten, const NodeView& node) {
  return std::make_unique<Dispatch>(aten, node);
}
std::unique_ptr<Kernel> make_combine(const Operators& aten, const NodeView& node) {
  return std::make_unique<Combine>(aten, node);
}
std::unique_ptr<Kernel> make_grouped_linear(const Operators& aten, const NodeView& node) {
  return std::make_unique<GroupedLinear>(aten, node);
}

}  // namespace

std::span<const Entry> expert_row_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "dispatch",
       .make = make_dispatch,
       .keeps_inputs = 0b110,
       .passes = 6,
       .workspace = dispatch_workspace,
       .is_weighted = true},
      {.pattern = "grouped_linear",
       .make = make_grouped_linear,
       .keeps_inputs = 0b11,
       .passes = 2,
       .workspace = grouped_linear_workspace,
       .keeps_x_for_weight = true},
      {.pattern = "combine",
       .make = make_combine,
       .keeps_inputs = 0b110,
       .passes = 6,
       .workspace = combine_workspace,
       .is_weighted = true},
  };
  return kEntries;
}

}  // namespace aten
