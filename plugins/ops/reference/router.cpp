// Sums of what a router chooses, and the losses that balance it; chassis/op.h has the formulas.
#include <cmath>

#include "chassis/router_sums.hpp"
#include "values.hpp"

namespace reference {
namespace {

class RouterStats : public Kernel {
 public:
  explicit RouterStats(const NodeView&) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    const int64_t rows = logits.size(0), num_experts = logits.size(2), k = experts.size(2);
    const RouterSumsPlaces at{num_experts};
    Values sums(static_cast<size_t>(rows * at.size()));
    Values largest(static_cast<size_t>(rows), -INFINITY);
    for_tokens(logits, experts, [&](int64_t row, int64_t t, const double* x, double log_sum) {
      double* const of_row = &sums[row * at.size()];
      for (int64_t j = 0; j < k; ++j) ++of_row[at.counts() + experts.data<int32_t>()[t * k + j]];
      for (int64_t e = 0; e < num_experts; ++e) {
        of_row[at.probabilities() + e] += std::exp(x[e] - log_sum);
        largest[row] = std::max(largest[row], x[e]);
      }
      of_row[at.squares()] += log_sum * log_sum;
    });
    write_output(call, 0, at_least_f32(logits.dtype()), {rows, at.size()}, sums);
    write_output(call, 1, at_least_f32(logits.dtype()), {rows}, largest);
  }

  // With gradients g of the softmaxes p and z of the squares: dx = p · (g - Σ g·p + 2 · log-sum · z).
  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0), experts = call.input(1);
    if (!call.grad_output(0)) return;
    const int64_t num_experts = logits.size(2);
    const RouterSumsPlaces at{num_experts};
    const Values dy = read_grad_output(call, static_cast<size_t>(logits.size(0) * at.size()));
    Values dx(static_cast<size_t>(logits.num_elements()));
    for_tokens(logits, experts, [&](int64_t row, int64_t t, const double* x, double log_sum) {
      const double* const of_row = &dy[row * at.size()];
      const double* const of_softmax = of_row + at.probabilities();
      double shared = 2 * log_sum * of_row[at.squares()];
      for (int64_t e = 0; e < num_experts; ++e) shared -= of_softmax[e] * std::exp(x[e] - log_sum);
      for (int64_t e = 0; e < num_experts; ++e)
        dx[t * num_experts + e] = std::exp(x[e] - log_sum) * (of_softmax[e] + shared);
    });
    store_grad_input(call, 0, logits.dtype(), logits.sizes(), dx);
  }

 private:
  // Calls body(row, token, its logits, log Σ exp of them) for each token with experts.
  template <typename Body>
  static void for_tokens(const BorrowedTensor& logits, const BorrowedTensor& experts, Body&& body) {
    const int64_t num_experts = logits.size(2), k = experts.size(2);
    const Values values = read(logits);
    for (int64_t t = 0; t < logits.size(0) * logits.size(1); ++t)
      if (experts.data<int32_t>()[t * k] >= 0)
        body(t / logits.size(1), t, &values[t * num_experts], log_sum_exp(&values[t * num_experts], num_experts));
  }
};

class LoadBalance : public Kernel {
 public:
  explicit LoadBalance(const NodeView& node)
      : chosen_(static_cast<double>(node.op(0).attr_int("chosen", 1))),
        aux_weight_(node.op(0).attr_float("aux_weight", 0)),
        z_weight_(node.op(0).attr_float("z_weight", 0)),
        form_(node.op(0).attr_string("balance")),
        ignore_index_(node.op(0).attr_int("ignore_index", -100)) {}

  void forward(Call& call) override {
    const BorrowedTensor stats = call.input(0);
    const Values slopes = gradient(stats), sums = read(stats);
    // Both terms are linear in the sums that have a gradient.
    double loss = 0;
    for (size_t i = 0; i < sums.size(); ++i) loss += slopes[i] * sums[i];
    write_output(call, 0, at_least_f32(stats.dtype()), {}, {loss * num_labels(call.input(1))});
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor stats = call.input(0);
    if (!call.grad_output(0)) return;
    const double scale = read_grad_output(call, 1)[0] * num_labels(call.input(1));
    Values slopes = gradient(stats);
    for (double& slope : slopes) slope *= scale;
    store_grad_input(call, 0, stats.dtype(), stats.sizes(), slopes);
  }

 private:
  // The gradient of the loss per label, for each sum.
  Values gradient(const BorrowedTensor& stats) const {
    const int64_t rows = stats.size(0), size = stats.size(1);
    const auto at = RouterSumsPlaces::in(size);
    const int64_t num_experts = at.num_experts;
    const bool by_row = form_ == "sequence";
    const Values sums = read(stats);
    Values totals(static_cast<size_t>(size)), out(sums.size());
    double num_rows = 0;  // with tokens
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < size; ++i) totals[i] += sums[row * size + i];
      num_rows += tokens_of(&sums[row * size + at.counts()], num_experts) > 0 ? 1 : 0;
    }
    const double tokens = tokens_of(&totals[at.counts()], num_experts);
    if (tokens == 0) return out;
    const double factor = aux_weight_ * static_cast<double>(num_experts) / (form_ == "layers" ? 1 : chosen_);
    for (int64_t row = 0; row < rows; ++row) {
      const double* const counts = (by_row ? &sums[row * size] : totals.data()) + at.counts();
      const double of_counts = tokens_of(counts, num_experts);
      for (int64_t e = 0; e < num_experts && of_counts > 0; ++e)
        out[row * size + at.probabilities() + e] =
            factor * counts[e] / (of_counts * of_counts) / (by_row ? num_rows : 1);
      out[row * size + at.squares()] = z_weight_ / tokens;
    }
    return out;
  }

  double tokens_of(const double* counts, int64_t num_experts) const {
    double sum = 0;
    for (int64_t e = 0; e < num_experts; ++e) sum += counts[e];
    return sum / chosen_;
  }

  double num_labels(const BorrowedTensor& labels) const {
    double count = 0;
    for (int64_t i = 0; i < labels.num_elements(); ++i) count += labels.data<int32_t>()[i] != ignore_index_ ? 1 : 0;
    return count;
  }

  const double chosen_, aux_weight_, z_weight_;
  const std::string form_;
  const int64_t ignore_index_;
};

}  // namespace

std::span<const Entry> router_entries() {
  static constexpr Entry kEntries[] = {
      {"router_stats",
       [](const NodeView& node) -> std::unique_ptr<Kernel> { return std::make_unique<RouterStats>(node); },
       0b11,
       {}},
      {"load_balance",
       [](const NodeView& node) -> std::unique_ptr<Kernel> { return std::make_unique<LoadBalance>(node); },
       0b11,
       {"chosen", "aux_weight", "z_weight", "balance", "ignore_index"}},
  };
  return kEntries;
}

}  // namespace reference
