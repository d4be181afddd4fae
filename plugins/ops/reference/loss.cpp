// token_logp: logits[label] - log Σ exp(logits), or 0 where label is ignore_index. cross_entropy is minus its sum.
#include <algorithm>
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

class TokenLogp : public Kernel {
 public:
  explicit TokenLogp(const NodeView& node) : ignore_index_(node.op(0).attr_int("ignore_index", -100)) {}

  void forward(Call& call) override {
    const BorrowedTensor labels = call.input(1);
    write_output(call, 0, result_dtype(call), sizes_of(labels), logps(call));
  }

  void backward_inputs(Call& call) override {
    add_gradients(call, read_grad_output(call, static_cast<size_t>(call.input(1).num_elements())));
  }

 protected:
  static uint32_t result_dtype(const Call& call) { return at_least_f32(call.input(0).dtype()); }

  Values logps(const Call& call) const {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t vocab = logits.size(-1);
    const Values xs = read(logits);
    Values out(static_cast<size_t>(labels.num_elements()));
    for (int64_t r = 0; r < labels.num_elements(); ++r) {
      const int64_t label = label_of(labels, r, vocab);
      if (label != ignore_index_) out[r] = xs[r * vocab + label] - log_sum_exp(&xs[r * vocab], vocab);
    }
    return out;
  }

  // `by_logp`: the gradients of the rows' log-probabilities.
  void add_gradients(Call& call, const Values& by_logp) const {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t vocab = logits.size(-1);
    Values dx = read(logits);
    for (int64_t r = 0; r < labels.num_elements(); ++r) {
      const int64_t label = label_of(labels, r, vocab);
      double* row = &dx[r * vocab];
      const double log_sum = log_sum_exp(row, vocab);
      for (int64_t i = 0; i < vocab; ++i)
        row[i] = label == ignore_index_ ? 0 : by_logp[r] * ((i == label ? 1 : 0) - std::exp(row[i] - log_sum));
    }
    store_grad_input(call, 0, logits.dtype(), logits.sizes(), dx);
  }

 private:
  int64_t label_of(const BorrowedTensor& labels, int64_t r, int64_t vocab) const {
    const int64_t label = labels.data<int32_t>()[r];
    if (label != ignore_index_ && (label < 0 || label >= vocab))
      throw Failure(CHASSIS_INVALID_ARGUMENT, "label ", label, " is outside a vocabulary of ", vocab);
    return label;
  }

  int64_t ignore_index_;
};

class CrossEntropy final : public TokenLogp {
 public:
  using TokenLogp::TokenLogp;

  void forward(Call& call) override {
    double loss = 0;
    for (const double logp : logps(call)) loss -= logp;
    write_output(call, 0, result_dtype(call), {}, {loss});
  }

  void backward_inputs(Call& call) override {
    const double scale = read_grad_output(call, 1)[0];
    add_gradients(call, Values(static_cast<size_t>(call.input(1).num_elements()), -scale));
  }
};

class PartialCrossEntropy : public Kernel {
 public:
  explicit PartialCrossEntropy(const NodeView& node)
      : ignore_index_(node.op(0).attr_int("ignore_index", -100)),
        first_(node.op(0).attr_int("first")),
        count_(node.op(0).attr_int("count")) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t columns = logits.size(-1);
    const Values xs = read(logits);
    Values log_sums, targets;
    for (int64_t r = 0; r < labels.num_elements(); ++r) {
      log_sums.push_back(count_ == 0 ? -INFINITY : log_sum_exp(&xs[r * columns], count_));
      targets.push_back(owns(labels, r) ? xs[r * columns + labels.data<int32_t>()[r] - first_] : 0);
    }
    const std::vector<int64_t> sizes = sizes_of(labels);
    const uint32_t dtype = at_least_f32(logits.dtype());
    write_output(call, 0, dtype, sizes, log_sums);
    write_output(call, 1, dtype, sizes, targets);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t columns = logits.size(-1), rows = labels.num_elements();
    const auto gradient = [&](uint32_t i) {
      const BorrowedTensor grad = call.grad_output(i);
      return grad ? read(grad) : Values(static_cast<size_t>(rows));
    };
    const Values by_log_sum = gradient(0), by_target = gradient(1);
    Values dx = read(logits);
    for (int64_t r = 0; r < rows; ++r) {
      double* row = &dx[r * columns];
      const double log_sum = count_ == 0 ? 0 : log_sum_exp(row, count_);
      for (int64_t i = 0; i < columns; ++i) {
        const bool is_target = owns(labels, r) && labels.data<int32_t>()[r] == first_ + i;
        row[i] = (i < count_ ? by_log_sum[r] * std::exp(row[i] - log_sum) : 0) + (is_target ? by_target[r] : 0);
      }
    }
    store_grad_input(call, 0, logits.dtype(), logits.sizes(), dx);
  }

 private:
  bool owns(const BorrowedTensor& labels, int64_t r) const {
    const int64_t label = labels.data<int32_t>()[r];
    return label != ignore_index_ && label >= first_ && label < first_ + count_;
  }

  int64_t ignore_index_, first_, count_;
};

class TotalTokenLogp : public Kernel {
 public:
  explicit TotalTokenLogp(const NodeView& node)
      : ignore_index_(node.op(0).attr_int("ignore_index", -100)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override { write_output(call, 0, result_dtype(), sizes_of(call.input(2)), logps(call)); }

  void backward_inputs(Call& call) override {
    add_gradients(call, read_grad_output(call, static_cast<size_t>(call.input(2).num_elements())));
  }

 protected:
  uint32_t result_dtype() const { return at_least_f32(dtype_); }

  Values logps(const Call& call) const {
    const Values log_sums = read(call.input(0)), targets = read(call.input(1));
    Values out(log_sums.size());
    for (size_t r = 0; r < out.size(); ++r)
      if (call.input(2).data<int32_t>()[r] != ignore_index_) out[r] = targets[r] - log_sums[r];
    return out;
  }

  // `by_logp`: the gradients of the rows' log-probabilities.
  void add_gradients(Call& call, Values by_logp) const {
    const BorrowedTensor labels = call.input(2);
    Values by_log_sum(by_logp.size());
    for (size_t r = 0; r < by_logp.size(); ++r) {
      if (labels.data<int32_t>()[r] == ignore_index_) by_logp[r] = 0;
      by_log_sum[r] = -by_logp[r];
    }
    store_grad_input(call, 0, dtype_, labels.sizes(), by_log_sum);
    store_grad_input(call, 1, dtype_, labels.sizes(), by_logp);
  }

 private:
  int64_t ignore_index_;
  uint32_t dtype_;
};

class TotalCrossEntropy final : public TotalTokenLogp {
 public:
  using TotalTokenLogp::TotalTokenLogp;

  void forward(Call& call) override {
    double loss = 0;
    for (const double logp : logps(call)) loss -= logp;
    write_output(call, 0, result_dtype(), {}, {loss});
  }

  void backward_inputs(Call& call) override {
    const double scale = read_grad_output(call, 1)[0];
    add_gradients(call, Values(static_cast<size_t>(call.input(2).num_elements()), -scale));
  }
};

template <class Made>
std::unique_ptr<Kernel> make(const NodeView& node) {
  return std::make_unique<Made>(node);
}

}  // namespace

std::span<const Entry> loss_entries() {
  static constexpr Entry kEntries[] = {
      {"cross_entropy", make<CrossEntropy>, 3, {"ignore_index"}},
      {"token_logp", make<TokenLogp>, 3, {"ignore_index"}},
      {"partial_cross_entropy", make<PartialCrossEntropy>, 3, {"ignore_index", "first", "count"}},
      {"total_cross_entropy", make<TotalCrossEntropy>, 4, {"ignore_index"}},
      {"total_token_logp", make<TotalTokenLogp>, 4, {"ignore_index"}},
  };
  return kEntries;
}

}  // namespace reference
