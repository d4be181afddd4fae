// router_stats and load_balance: sums of what a router chose, and the losses that balance it.
#include <cmath>

#include "chassis/router_sums.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

// The parts of sums, or of their gradients, [rows, 2E+1].
struct SumsParts {
  Tensor counts, probabilities;  // [rows, E]
  Tensor squares;                // [rows, 1]

  SumsParts(const Operators& aten, const BorrowedTensor& sums) {
    const auto at = RouterSumsPlaces::in(sums.size(1));
    counts = aten.narrow(sums, 1, at.counts(), at.num_experts);
    probabilities = aten.narrow(sums, 1, at.probabilities(), at.num_experts);
    squares = aten.narrow(sums, 1, at.squares(), 1);
  }
};

class RouterStats : public AtenKernel {
 public:
  RouterStats(const Operators& aten, const NodeView&) : AtenKernel(aten) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    const int64_t rows = logits.size(0), num_experts = logits.size(2);
    const uint32_t dtype = wide(logits.dtype());
    const BorrowedTensor sums = call.make_output(0, dtype, Shape{rows, RouterSumsPlaces{num_experts}.size()}),
                         largest = call.make_output(1, dtype, Shape{rows});
    const SumsParts parts(aten_, sums);
    const auto store = [&](const Tensor& values, const Tensor& part) {  // values of each token
      aten_.copy_(part,
                  aten_.sum_dims(aten_.view(values, Shape{rows, logits.size(1), values.size(1)}), Shape{1}, false));
    };
    store(choices(call, logits, experts), parts.counts);
    const Tensor is_none = tokens_without_experts(experts), x = wide_copy(logits);
    {
      const Tensor log_sums = aten_.logsumexp(x, Shape{1}, true);
      aten_.masked_fill_(log_sums, is_none, 0.0);
      store(aten_.mul(log_sums, log_sums), parts.squares);
    }
    {
      const Tensor p = aten_.softmax(x, -1, false);
      aten_.masked_fill_(p, is_none, 0.0);
      store(p, parts.probabilities);
    }
    aten_.masked_fill_(x, is_none, -INFINITY);
    aten_.copy_(largest, aten_.amax(aten_.view(x, Shape{rows, logits.size(1) * num_experts}), Shape{1}));
  }

  // As in the reference: dx = p · (g - Σ g·p + 2 · log-sum · z).
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), logits = call.input(0), experts = call.input(1);
    if (!dy || !call.wants_grad_input(0)) return;
    const int64_t rows = logits.size(0), time = logits.size(1), num_experts = logits.size(2);
    const Tensor is_none = tokens_without_experts(experts), x = cast(matrix(logits, num_experts), wide(logits.dtype()));
    const Tensor log_sums = aten_.logsumexp(x, Shape{1}, true), softmaxes = aten_.softmax(x, -1, false);
    aten_.masked_fill_(log_sums, is_none, 0.0);
    aten_.masked_fill_(softmaxes, is_none, 0.0);
    const Tensor p = aten_.view(softmaxes, Shape{rows, time, num_experts});
    const SumsParts by(aten_, dy);
    const Tensor g = aten_.view(by.probabilities, Shape{rows, 1, num_experts}),
                 z = aten_.view(by.squares, Shape{rows, 1, 1});
    const Tensor terms = aten_.mul(p, g), shared = aten_.mul(aten_.view(log_sums, Shape{rows, time, 1}), z);
    aten_.mul_scalar_(shared, 2);
    aten_.sub_(shared, aten_.sum_dims(terms, Shape{2}, true));
    aten_.mul_(p, shared);
    aten_.add_(terms, p);
    store_grad_input(call, 0, logits.dtype(), terms.retain());
  }

 private:
  // 1 at the experts of each token: [tokens, experts].
  Tensor choices(const Call& call, const BorrowedTensor& logits, const BorrowedTensor& experts) const {
    const Tensor ids = matrix(experts, experts.size(2)),
                 index = aten_.to_dtype(ids, DtypeArg{CHASSIS_DTYPE_I64}, false, true);
    aten_.masked_fill_(index, aten_.lt_scalar(ids, 0), 0);
    const Tensor ones = aten_.to_dtype(aten_.ge_scalar(ids, 0), DtypeArg{wide(logits.dtype())}, false, true);
    Tensor out = create(call, logits, wide(logits.dtype()), Shape{ids.size(0), logits.size(2)});
    aten_.zero_(out);
    aten_.scatter_add_(out, 1, index, ones);  // the experts of a token differ: no two ones meet
    return out;
  }
  Tensor tokens_without_experts(const BorrowedTensor& experts) const {
    return aten_.lt_scalar(aten_.narrow(matrix(experts, experts.size(2)), 1, 0, 1), 0);
  }
};

class LoadBalance : public AtenKernel {
 public:
  LoadBalance(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        chosen_(static_cast<double>(node.op(0).attr_int("chosen", 1))),
        aux_weight_(node.op(0).attr_float("aux_weight", 0)),
        z_weight_(node.op(0).attr_float("z_weight", 0)),
        by_layer_(node.op(0).attr_string("balance") != "layers"),
        by_row_(node.op(0).attr_string("balance") == "sequence"),
        ignore_index_(node.op(0).attr_int("ignore_index", -100)) {}

  void forward(Call& call) override {
    const BorrowedTensor stats = call.input(0), loss = call.make_output(0, stats.dtype(), Shape{});
    const Slopes slopes = slopes_of(stats);
    const Tensor squares = aten_.sum(SumsParts(aten_, stats).squares);
    aten_.mul_(squares, slopes.of_squares);
    const Tensor aux = aten_.sum(aten_.mul(slopes.of_probabilities, SumsParts(aten_, slopes.sums).probabilities));
    aten_.add_(aux, squares);
    aten_.mul_(aux, num_labels(call.input(1), stats.dtype()));
    aten_.copy_(loss, aux);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), stats = call.input(0);
    if (!dy || !call.wants_grad_input(0)) return;
    const Slopes slopes = slopes_of(stats);
    const Tensor scale = aten_.mul(num_labels(call.input(1), stats.dtype()), dy);
    const Tensor dstats = create(call, stats, stats.dtype(), shape_of(stats));
    aten_.zero_(dstats);
    const SumsParts parts(aten_, dstats);
    aten_.copy_(parts.probabilities, aten_.mul(slopes.of_probabilities, scale));
    aten_.copy_(parts.squares, aten_.mul(slopes.of_squares, scale));
    store_grad_input(call, 0, stats.dtype(), dstats.retain());
  }

 private:
  // The loss per label is linear in the probabilities and squares; the counts are constants.
  struct Slopes {
    Tensor sums;              // [rows, 2E+1]; one row unless the loss is one of each row
    Tensor of_probabilities;  // [rows, E]
    Tensor of_squares;        // []
  };

  Slopes slopes_of(const BorrowedTensor& stats) const {
    Slopes out;
    out.sums = by_row_ ? stats.retain() : aten_.sum_dims(stats, Shape{0}, true);
    const Tensor counts = SumsParts(aten_, out.sums).counts, tokens = aten_.sum_dims(counts, Shape{1}, true);
    aten_.mul_scalar_(tokens, 1 / chosen_);
    const Tensor is_empty = aten_.eq_scalar(tokens, 0);
    Tensor all_tokens = aten_.sum(tokens), num_rows = aten_.sum(aten_.to_dtype(is_empty, DtypeArg{stats.dtype()}));
    replace_zero(all_tokens);
    aten_.mul_scalar_(num_rows, -1);
    aten_.add_scalar_(num_rows, out.sums.size(0));
    replace_zero(num_rows);
    aten_.masked_fill_(tokens, is_empty, 1.0);
    out.of_probabilities = aten_.to_dtype(counts, DtypeArg{stats.dtype()}, false, true);
    aten_.div_(out.of_probabilities, aten_.mul(tokens, tokens));
    aten_.div_(out.of_probabilities, num_rows);
    aten_.mul_scalar_(out.of_probabilities,
                      aux_weight_ * static_cast<double>(counts.size(1)) / (by_layer_ ? chosen_ : 1.0));
    out.of_squares = aten_.to_dtype(all_tokens, DtypeArg{stats.dtype()}, false, true);
    aten_.fill_(out.of_squares, z_weight_);
    aten_.div_(out.of_squares, all_tokens);
    return out;
  }

  void replace_zero(const Tensor& divisor) const { aten_.masked_fill_(divisor, aten_.eq_scalar(divisor, 0), 1.0); }

  Tensor num_labels(const BorrowedTensor& labels, uint32_t dtype) const {
    Tensor count = aten_.sum(aten_.to_dtype(aten_.eq_scalar(labels, ignore_index_), DtypeArg{dtype}));
    aten_.mul_scalar_(count, -1);
    aten_.add_scalar_(count, labels.num_elements());
    return count;
  }

  const double chosen_, aux_weight_, z_weight_;
  const bool by_layer_, by_row_;
  const int64_t ignore_index_;
};

std::unique_ptr<Kernel> make_router_stats(const Operators& aten, const NodeView& node) {
  return std::make_unique<RouterStats>(aten, node);
}
std::unique_ptr<Kernel> make_load_balance(const Operators& aten, const NodeView& node) {
  return std::make_unique<LoadBalance>(aten, node);
}

}  // namespace

std::span<const Entry> router_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "router_stats",
       .make = make_router_stats,
       .keeps_inputs = 0b11,
       .passes = 8,
       .workspace = router_stats_workspace},
      {.pattern = "load_balance",
       .make = make_load_balance,
       .keeps_inputs = 0b11,
       .passes = 4,
       .attrs = {"chosen", "aux_weight", "z_weight", "balance", "ignore_index"},
       .workspace = load_balance_workspace},
  };
  return kEntries;
}

}  // namespace aten
