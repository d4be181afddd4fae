// Cross entropy over a part of the classes, on whole logits and in a head in chunks; and the total over the parts.
#include "head_chunks.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

// The gradient of output i as a column of `rows`; zeros if it is absent.
Tensor column_of_gradient(const Operators& aten, const Call& call, uint32_t i, int64_t rows) {
  return gradient_or_zeros(aten, call, i, Shape{rows, 1}, call.output(0));
}

class PartialCrossEntropy : public AtenKernel {
 public:
  PartialCrossEntropy(const Operators& aten, const OpView& op) : AtenKernel(aten), rows_(aten, op) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const uint32_t dtype = wide(logits.dtype());
    const BorrowedTensor log_sum = call.make_output(0, dtype, shape_of(labels)),
                         target = call.make_output(1, dtype, shape_of(labels));
    const Shape column = {labels.num_elements(), 1};
    rows_.store(cast(matrix(logits, logits.size(-1)), dtype), rows_.labels(labels), aten_.view(log_sum, column),
                aten_.view(target, column));
  }

  void backward_inputs(Call& call) override {
    if (!call.wants_grad_input(0)) return;
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t rows = labels.num_elements();
    const Tensor gradient = wide_copy(logits);
    rows_.to_gradient(gradient, rows_.labels(labels), aten_.view(call.output(0), Shape{rows, 1}),
                      column_of_gradient(aten_, call, 0, rows), column_of_gradient(aten_, call, 1, rows));
    store_grad_input(call, 0, logits.dtype(), aten_.view(gradient, shape_of(logits)));
  }

 private:
  PartialRows rows_;
};

// Backward computes the logits again, since their gradient needs the sums of all parts.
class LinearPartialCrossEntropy : public HeadChunks<PartialRows> {
 public:
  using HeadChunks::HeadChunks;

  void forward(Call& call) override {
    const BorrowedTensor labels = call.input(1);
    const uint32_t dtype = wide(call.input(0).dtype());
    const Shape column = {labels.num_elements(), 1};
    const BorrowedTensor log_sums = call.make_output(0, dtype, shape_of(labels)),
                         targets = call.make_output(1, dtype, shape_of(labels));
    const Tensor log_sum = aten_.view(log_sums, column), target = aten_.view(targets, column);
    for_chunks(call, false, [&](const Chunk& chunk) {
      rows_.store(chunk.logits, chunk.labels, aten_.narrow(log_sum, 0, chunk.begin, chunk.rows),
                  aten_.narrow(target, 0, chunk.begin, chunk.rows));
    });
  }

  void backward_inputs(Call& call) override {
    if (!call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    const Tensor dx = init_grad_input(call);
    for_gradients(call, [&](const Chunk& chunk) { add_grad_input(call, chunk, dx, adds); });
  }

  void backward_params(Call& call) override {
    init_grad_params(call);
    for_gradients(call, [&](const Chunk& chunk) { add_grad_params(call, chunk); });
  }

 private:
  template <typename Body>
  void for_gradients(Call& call, Body&& body) const {
    const int64_t rows = call.input(1).num_elements();
    const Tensor log_sum = aten_.view(call.output(0), Shape{rows, 1});
    const Tensor by_log_sum = column_of_gradient(aten_, call, 0, rows),
                 by_target = column_of_gradient(aten_, call, 1, rows);
    for_chunks(call, true, [&](const Chunk& chunk) {
      const auto part = [&](const Tensor& column) { return aten_.narrow(column, 0, chunk.begin, chunk.rows); };
      rows_.to_gradient(chunk.logits, chunk.labels, part(log_sum), part(by_log_sum), part(by_target));
      if (chunk.slopes) aten_.mul_(chunk.logits, chunk.slopes);
      body(chunk);
    });
  }
};

// The log-probabilities of the labels over all parts, or the loss, which is minus their sum.
class Total : public AtenKernel {
 public:
  Total(const Operators& aten, const NodeView& node, bool is_loss)
      : AtenKernel(aten),
        ignore_index_(node.op(0).attr_int("ignore_index", -100)),
        dtype_(node.input(0).dtype()),
        is_loss_(is_loss) {}

  void forward(Call& call) override {
    const BorrowedTensor log_sum = call.input(0);
    const uint32_t dtype = wide(log_sum.dtype());
    const BorrowedTensor out = call.make_output(0, dtype, is_loss_ ? Shape{} : shape_of(log_sum));
    const Tensor logps = aten_.to_dtype(call.input(1), DtypeArg{dtype}, false, true);
    aten_.sub_(logps, log_sum);
    aten_.masked_fill_(logps, aten_.eq_scalar(call.input(2), ignore_index_), 0);
    if (!is_loss_) return void(aten_.copy_(out, logps));
    aten_.copy_(out, aten_.sum(logps));
    aten_.mul_scalar_(out, -1);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0), labels = call.input(2);
    if (!scale) return;
    for (uint32_t i = 0; i < 2; ++i) {
      if (!call.wants_grad_input(i)) continue;
      Tensor gradient = create(call, labels, scale.dtype(), shape_of(labels));
      aten_.fill_(gradient, (i == 0) == is_loss_ ? 1.0 : -1.0);
      aten_.mul_(gradient, scale);
      aten_.masked_fill_(gradient, aten_.eq_scalar(labels, ignore_index_), 0);
      store_grad_input(call, i, dtype_, std::move(gradient));
    }
  }

 private:
  int64_t ignore_index_;
  uint32_t dtype_;  // of the sums
  bool is_loss_;
};

std::unique_ptr<Kernel> make_partial_cross_entropy(const Operators& aten, const NodeView& node) {
  return std::make_unique<PartialCrossEntropy>(aten, node.op(0));
}

std::unique_ptr<Kernel> make_linear_partial_cross_entropy(const Operators& aten, const NodeView& node) {
  const bool capped = node.num_ops() == 3;
  return std::make_unique<LinearPartialCrossEntropy>(
      aten, PartialRows(aten, node.op(capped ? 2 : 1), capped ? node.op(1).attr_float("cap") : 0));
}

std::unique_ptr<Kernel> make_total_cross_entropy(const Operators& aten, const NodeView& node) {
  return std::make_unique<Total>(aten, node, true);
}

std::unique_ptr<Kernel> make_total_token_logp(const Operators& aten, const NodeView& node) {
  return std::make_unique<Total>(aten, node, false);
}

}  // namespace

std::span<const Entry> partial_cross_entropy_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear+softcap+partial_cross_entropy",
       .make = make_linear_partial_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 11,
       .attrs = {"cap", "ignore_index", "first", "count"},
       .workspace = head_workspace,
       .keeps_output = true},
      {.pattern = "linear+partial_cross_entropy",
       .make = make_linear_partial_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 8,
       .attrs = {"ignore_index", "first", "count"},
       .workspace = head_workspace,
       .keeps_output = true},
      {.pattern = "partial_cross_entropy",
       .make = make_partial_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 6,
       .attrs = {"ignore_index", "first", "count"},
       .workspace = partial_cross_entropy_workspace,
       .keeps_output = true},
      {.pattern = "total_cross_entropy",
       .make = make_total_cross_entropy,
       .keeps_inputs = 0b100,
       .passes = 2,
       .attrs = {"ignore_index"}},
      {.pattern = "total_token_logp",
       .make = make_total_token_logp,
       .keeps_inputs = 0b100,
       .passes = 2,
       .attrs = {"ignore_index"}},
  };
  return kEntries;
}

}  // namespace aten
