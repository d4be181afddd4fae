// The log-probabilities of labels, of whole logits and in a head in chunks. The gradient of a row's result with respect
// to x needs only a factor that comes later, so the head makes it for the factor 1 while the logits exist, and saves
// it.
#include "head_chunks.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

// Minus the gradient of output 0, as a column. Rationale: LossRows has the gradient of a loss, which is minus that of
// log-probabilities.
Tensor minus_gradient(const Operators& aten, const Call& call) {
  const BorrowedTensor gradient = call.grad_output(0);
  Tensor column =
      aten.to_dtype(aten.view(gradient, Shape{gradient.num_elements(), 1}), DtypeArg{gradient.dtype()}, false, true);
  aten.mul_scalar_(column, -1);
  return column;
}

class TokenLogp : public AtenKernel {
 public:
  TokenLogp(const Operators& aten, int64_t ignore_index) : AtenKernel(aten), rows_(aten, ignore_index) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const BorrowedTensor logps = call.make_output(0, wide(logits.dtype()), shape_of(labels));
    aten_.copy_(matrix(logps, 1), rows_.pick(wide_copy(logits), rows_.labels(labels)));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0);
    if (!call.grad_output(0) || !call.wants_grad_input(0)) return;
    const Tensor gradient = wide_copy(logits);
    aten_.log_softmax_out(gradient, -1, false, gradient);
    rows_.to_gradient(gradient, rows_.labels(call.input(1)), minus_gradient(aten_, call));
    store_grad_input(call, 0, logits.dtype(), aten_.view(gradient, shape_of(logits)));
  }

 private:
  LossRows rows_;
};

class LinearTokenLogp : public HeadChunks<LossRows> {
 public:
  LinearTokenLogp(const Operators& aten, LossRows rows, const NodeView& node)
      : HeadChunks(aten, std::move(rows), wide_columns(aten.host, node)),
        saves_(node.training() && node.input(0).needs_grad()) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), labels = call.input(1);
    const uint32_t dtype = wide(x.dtype());
    const BorrowedTensor out = call.make_output(0, dtype, shape_of(labels));
    const Tensor logps = matrix(out, 1), weight = call.param(0).retain();
    const bool saves = saves_ && call.training();
    Tensor saved, saved_rows, one;
    if (saves) {
      saved = Tensor::create_like(call.host(), x);
      saved_rows = matrix(saved, weight.size(1));
      one = create(call, x, dtype, Shape{});
      aten_.fill_(one, 1);
    }
    for_chunks(call, saves, [&](const Chunk& chunk) {
      aten_.copy_(aten_.narrow(logps, 0, chunk.begin, chunk.rows), rows_.pick(chunk.logits, chunk.labels));
      if (!saves) return;
      to_gradient(chunk, one);
      accumulate_product(aten_.narrow(saved_rows, 0, chunk.begin, chunk.rows), 0, chunk.logits, weight);
    });
    if (saves) call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0) || !call.wants_grad_input(0)) return;
    const BorrowedTensor saved = call.saved(0);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) call.set_grad_input(0, Tensor::create_like(call.host(), saved));
    const int64_t in = call.param(0).size(1);
    const Tensor from = matrix(saved, in), dx = matrix(call.grad_input(0), in), factors = minus_gradient(aten_, call);
    for_slabs(factors.num_elements(), in, [&](int64_t begin, int64_t rows) {
      const Tensor part = aten_.narrow(dx, 0, begin, rows),
                   scaled = aten_.mul(aten_.narrow(from, 0, begin, rows), aten_.narrow(factors, 0, begin, rows));
      if (adds)
        aten_.add_(part, scaled);
      else
        aten_.copy_(part, scaled);
    });
  }

  // Computes the logits again.
  void backward_params(Call& call) override {
    init_grad_params(call);
    if (!call.grad_output(0)) return;
    const Tensor factors = minus_gradient(aten_, call);
    for_chunks(call, true, [&](const Chunk& chunk) {
      aten_.log_softmax_out(chunk.logits, -1, false, chunk.logits);
      to_gradient(chunk, aten_.narrow(factors, 0, chunk.begin, chunk.rows));
      add_grad_params(call, chunk);
    });
  }

 private:
  // chunk.logits are log probabilities.
  void to_gradient(const Chunk& chunk, const BorrowedTensor& factors) const {
    rows_.to_gradient(chunk.logits, chunk.labels, factors);
    if (chunk.slopes) aten_.mul_(chunk.logits, chunk.slopes);
  }

  bool saves_;
};

std::unique_ptr<Kernel> make_token_logp(const Operators& aten, const NodeView& node) {
  return std::make_unique<TokenLogp>(aten, node.op(0).attr_int("ignore_index", -100));
}

std::unique_ptr<Kernel> make_linear_token_logp(const Operators& aten, const NodeView& node) {
  const bool capped = node.num_ops() == 3;
  return std::make_unique<LinearTokenLogp>(
      aten,
      LossRows(aten, node.op(capped ? 2 : 1).attr_int("ignore_index", -100), capped ? node.op(1).attr_float("cap") : 0),
      node);
}

}  // namespace

std::span<const Entry> token_logp_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear+softcap+token_logp",
       .make = make_linear_token_logp,
       .keeps_inputs = 0b11,
       .passes = 11,
       .attrs = {"cap", "ignore_index"},
       .workspace = token_logp_workspace,
       .keeps_for_weight = true,
       .saves_gradient = true},
      {.pattern = "linear+token_logp",
       .make = make_linear_token_logp,
       .keeps_inputs = 0b11,
       .passes = 8,
       .attrs = {"ignore_index"},
       .workspace = token_logp_workspace,
       .keeps_for_weight = true,
       .saves_gradient = true},
      {.pattern = "token_logp",
       .make = make_token_logp,
       .keeps_inputs = 0b11,
       .passes = 6,
       .attrs = {"ignore_index"},
       .workspace = cross_entropy_workspace},
  };
  return kEntries;
}

}  // namespace aten
