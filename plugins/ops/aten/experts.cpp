// top_experts, expert_weights and gate_tokens: the choice of experts and the numbers for each token.
#include <cmath>

#include "workspace.hpp"

namespace aten {
namespace {

// Rationale: topk does not say which of equal logits wins, so logits are sorted, and the sort is stable.
class TopExperts : public AtenKernel {
 public:
  TopExperts(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_(node.output(0), node.input(0)),
        chosen_(node.output(0).size(2)),
        groups_(node.op(0).attr_int("groups", 1)),
        top_groups_(node.op(0).attr_int("top_groups", groups_)) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), documents = call.input(1);
    const BorrowedTensor out = call.make_output(0, CHASSIS_DTYPE_I32, planned_.in_call(logits));
    const Tensor experts = matrix(out, chosen_);
    aten_.copy_(experts, sorted(choose(call, logits)).values);
    if (documents)
      aten_.masked_fill_(experts, aten_.lt_scalar(aten_.view(documents, Shape{experts.size(0), 1}), 0), -1);
  }

  void backward_inputs(Call&) override {}  // a choice has no gradient

 private:
  struct Sorted {
    Tensor values, indices;
  };
  // Each row in ascending order.
  Sorted sorted(const Tensor& x) const {
    auto [values, indices] = aten_.sort_stable.tensors<2>(x, true, -1, false);
    return {std::move(values), std::move(indices)};
  }
  // The indices of the `count` largest numbers of each row, the largest first.
  Tensor largest(Tensor x, int64_t count) const {
    aten_.mul_scalar_(x, -1);
    return aten_.narrow(sorted(x).indices, 1, 0, count);
  }

  // [tokens, chosen] i64, in the order of their logits.
  Tensor choose(const Call& call, const BorrowedTensor& logits) const {
    // NaN counts as the smallest, so that the order is total.
    Tensor x = aten_.nan_to_num(matrix(logits, logits.size(-1)), -INFINITY, INFINITY, -INFINITY);
    if (groups_ == 1) return largest(std::move(x), chosen_);
    const int64_t tokens = x.size(0), per_group = x.size(1) / groups_, count = top_groups_ * per_group;
    // The experts of the chosen groups, in ascending order.
    Tensor groups =
        sorted(largest(aten_.amax(aten_.view(x, Shape{tokens, groups_, per_group}), Shape{-1}), top_groups_)).values;
    aten_.mul_scalar_(groups, per_group);
    const Tensor within = create(call, x, CHASSIS_DTYPE_I64, Shape{per_group}),
                 candidates = create(call, x, CHASSIS_DTYPE_I64, Shape{tokens, count});
    aten_.arange_out(per_group, within);
    aten_.add_out(aten_.view(groups, Shape{tokens, top_groups_, 1}), within, 1,
                  aten_.view(candidates, Shape{tokens, top_groups_, per_group}));
    Tensor of_candidates = aten_.gather(x, 1, candidates);
    x = Tensor();
    return aten_.gather(candidates, 1, largest(std::move(of_candidates), chosen_));
  }

  PlannedSizes planned_;
  const int64_t chosen_, groups_, top_groups_;
};

enum class ExpertScore { kSoftmax, kChosenSoftmax, kSigmoid };

// Refuses a score that it does not know.
ExpertScore expert_score_of(const NodeView& node) {
  const auto name = node.op(0).attr_string("score");
  if (name == "softmax") return ExpertScore::kSoftmax;
  if (name == "chosen_softmax") return ExpertScore::kChosenSoftmax;
  if (name == "sigmoid") return ExpertScore::kSigmoid;
  refuse("does not compute score '", name, "'");
}

class ExpertWeights : public AtenKernel {
 public:
  ExpertWeights(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_logits_(node.input(0), node.input(1)),
        score_(expert_score_of(node)),
        normalizes_(node.op(0).attr_int("normalize", 0) != 0),
        factor_(node.op(0).attr_float("factor", 1)) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    const BorrowedTensor out = call.make_output(0, logits.dtype(), experts.sizes());
    const Scores of = scores(logits, experts);
    if (normalizes_) aten_.div_(of.chosen, of.divisor);
    if (factor_ != 1) aten_.mul_scalar_(of.chosen, factor_);
    aten_.copy_(matrix(out, experts.size(-1)), of.chosen);
  }

  // With w = factor · s / d, where d is Σ s if weights are normalized: ds = factor · (dw - Σ dw·s/d) / d. Of a softmax,
  // dx = ds·s at the chosen experts - p · Σ ds·s, over all experts or the chosen ones.
  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), logits = call.input(0), experts = call.input(1);
    if (!dy || !call.wants_grad_input(0)) return;
    const int64_t chosen = experts.size(-1);
    Scores of = scores(logits, experts);
    Tensor terms = aten_.to_dtype(matrix(dy, chosen), DtypeArg{of.chosen.dtype()}, false, true);  // ds·s
    if (normalizes_) {
      const Tensor mean = aten_.sum_dims(aten_.mul(terms, of.chosen), Shape{-1}, true);
      aten_.div_(mean, of.divisor);
      aten_.sub_(terms, mean);
      aten_.div_(terms, of.divisor);
    }
    aten_.mul_(terms, of.chosen);
    if (factor_ != 1) aten_.mul_scalar_(terms, factor_);
    Tensor dx = std::move(of.all);
    if (score_ == ExpertScore::kSoftmax) {
      const Tensor sum = aten_.sum_dims(terms, Shape{-1}, true);
      aten_.mul_scalar_(sum, -1);
      aten_.mul_(dx, sum);
    } else {
      dx = create(call, logits, logits.dtype(), Shape{terms.size(0), logits.size(-1)});
      aten_.zero_(dx);
      // dsigmoid = s · (1 - s)
      const Tensor scale = score_ == ExpertScore::kSigmoid ? terms.retain() : aten_.sum_dims(terms, Shape{-1}, true);
      aten_.sub_(terms, aten_.mul(of.chosen, scale));
    }
    aten_.scatter_add_(dx, 1, of.experts, terms);  // the experts of a token differ: no two values meet
    store_grad_input(call, 0, logits.dtype(), aten_.view(dx, planned_logits_.in_call(experts)));
  }

 private:
  struct Scores {
    Tensor experts;  // i64 [tokens, chosen], 0 for -1
    Tensor chosen;   // their scores, 0 for -1
    Tensor all;      // kSoftmax: those of all experts
    Tensor divisor;  // [tokens, 1], if weights are normalized
  };
  Scores scores(const BorrowedTensor& logits, const BorrowedTensor& experts) const {
    const Tensor x = matrix(logits, logits.size(-1)), ids = matrix(experts, experts.size(-1)),
                 is_none = aten_.lt_scalar(ids, 0);
    Scores out;
    out.experts = aten_.to_dtype(ids, DtypeArg{CHASSIS_DTYPE_I64}, false, true);
    aten_.masked_fill_(out.experts, is_none, 0);
    if (score_ == ExpertScore::kSoftmax) out.all = aten_.softmax(x, -1, false);
    out.chosen = aten_.gather(score_ == ExpertScore::kSoftmax ? out.all : x, 1, out.experts);
    if (score_ == ExpertScore::kSigmoid) aten_.sigmoid_(out.chosen);
    if (score_ == ExpertScore::kChosenSoftmax) {
      aten_.masked_fill_(out.chosen, is_none, -INFINITY);
      out.chosen = aten_.softmax(out.chosen, -1, false);
    }
    aten_.masked_fill_(out.chosen, is_none, 0.0);
    if (normalizes_) {
      out.divisor = aten_.sum_dims(out.chosen, Shape{-1}, true);
      aten_.masked_fill_(out.divisor, aten_.eq_scalar(out.divisor, 0), 1.0);  // a token without experts
    }
    return out;
  }

  PlannedSizes planned_logits_;
  const ExpertScore score_;
  const bool normalizes_;
  const double factor_;
};

// y = sigmoid(score) · x.
class GateTokens : public AtenKernel {
 public:
  GateTokens(const Operators& aten, const NodeView&) : AtenKernel(aten) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), scores = call.input(1);
    const BorrowedTensor y = call.make_output(0, x.dtype(), x.sizes());
    const Tensor gates = gates_of(scores, x);
    for_rows(x, y, gates, [&](const Tensor& rows, const Tensor& gate, const Tensor& out) {
      aten_.copy_(out, aten_.mul(rows, gate));
    });
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0), x = call.input(0), scores = call.input(1);
    if (!dy) return;
    const Tensor gates = gates_of(scores, x);
    if (call.wants_grad_input(1)) {
      const Tensor sums = create(call, x, gates.dtype(), Shape{gates.size(0), 1});
      for_rows(x, dy, sums, [&](const Tensor& rows, const Tensor& sum, const Tensor& of_rows) {
        aten_.copy_(sum, aten_.sum_dims(aten_.mul(rows, of_rows), Shape{-1}, true));
      });
      const Tensor slopes = aten_.mul(gates, gates);  // gate · (1 - gate) = gate - gate²
      aten_.sub_(slopes, gates);
      aten_.mul_scalar_(slopes, -1);
      aten_.mul_(sums, slopes);
      store_grad_input(call, 1, scores.dtype(), aten_.view(sums, scores.sizes()));
    }
    if (!call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (!adds) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    for_rows(dy, call.grad_input(0), gates, [&](const Tensor& rows, const Tensor& gate, const Tensor& dx) {
      accumulate(dx, adds ? 1 : 0, aten_.mul(rows, gate));
    });
  }

 private:
  // [tokens, 1], in the dtype of the formula.
  Tensor gates_of(const BorrowedTensor& scores, const BorrowedTensor& x) const {
    return aten_.sigmoid(cast(aten_.view(scores, Shape{scores.num_elements(), 1}), wide(x.dtype())));
  }
  // body(rows of x in the wide dtype, their numbers, rows of y).
  template <typename Body>
  void for_rows(const BorrowedTensor& x, const BorrowedTensor& y, const Tensor& numbers, Body&& body) const {
    const int64_t columns = x.num_elements() / std::max<int64_t>(1, numbers.num_elements());
    const Tensor all_x = matrix(x, columns), all_y = matrix(y, columns);
    for_slabs(all_x.size(0), columns, [&](int64_t begin, int64_t rows) {
      body(cast(aten_.narrow(all_x, 0, begin, rows), wide(x.dtype())), aten_.narrow(numbers, 0, begin, rows),
           aten_.narrow(all_y, 0, begin, rows));
    });
  }
};

std::unique_ptr<Kernel> make_top_experts(const Operators& aten, const NodeView& node) {
  return std::make_unique<TopExperts>(aten, node);
}
std::unique_ptr<Kernel> make_expert_weights(const Operators& aten, const NodeView& node) {
  return std::make_unique<ExpertWeights>(aten, node);
}
std::unique_ptr<Kernel> make_gate_tokens(const Operators& aten, const NodeView& node) {
  return std::make_unique<GateTokens>(aten, node);
}

void check_expert_score(const NodeView& node) { expert_score_of(node); }

}  // namespace

std::span<const Entry> expert_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "top_experts",
       .make = make_top_experts,
       .passes = 8,
       .attrs = {"groups", "top_groups"},
       .workspace = top_experts_workspace},
      {.pattern = "expert_weights",
       .make = make_expert_weights,
       .keeps_inputs = 0b11,
       .passes = 8,
       .attrs = {"score", "normalize", "factor"},
       .check = check_expert_score,
       .workspace = expert_weights_workspace},
      {.pattern = "gate_tokens",
       .make = make_gate_tokens,
       .keeps_inputs = 0b11,
       .passes = 4,
       .workspace = gate_tokens_workspace},
  };
  return kEntries;
}

}  // namespace aten
