// cross_entropy: Σ over labels other than ignore_index of log Σ exp(logits) - logits[label].
#include <algorithm>
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

double log_sum_exp(const double* row, int64_t count) {
  const double largest = *std::max_element(row, row + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

class CrossEntropy : public Kernel {
 public:
  explicit CrossEntropy(int64_t ignore_index) : ignore_index_(ignore_index) {}

  void forward(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t vocab = logits.size(-1);
    const Values xs = read(logits);
    double loss = 0;
    for (int64_t r = 0; r < labels.num_elements(); ++r) {
      const int64_t label = label_of(labels, r, vocab);
      if (label != ignore_index_) loss += log_sum_exp(&xs[r * vocab], vocab) - xs[r * vocab + label];
    }
    const uint32_t dtype =
        logits.dtype() == CHASSIS_DTYPE_F64 && !call.output(0) ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32;
    write_output(call, 0, dtype, {}, {loss});
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor logits = call.input(0), labels = call.input(1);
    const int64_t vocab = logits.size(-1);
    const double scale = read_grad_output(call, 1)[0];
    Values dx = read(logits);
    for (int64_t r = 0; r < labels.num_elements(); ++r) {
      const int64_t label = label_of(labels, r, vocab);
      double* row = &dx[r * vocab];
      const double log_sum = log_sum_exp(row, vocab);
      for (int64_t i = 0; i < vocab; ++i)
        row[i] = label == ignore_index_ ? 0 : scale * (std::exp(row[i] - log_sum) - (i == label ? 1 : 0));
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
    const std::vector<int64_t> sizes(labels.sizes().begin(), labels.sizes().end());
    const uint32_t dtype =
        logits.dtype() == CHASSIS_DTYPE_F64 && !call.output(0) ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32;
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

class TotalCrossEntropy : public Kernel {
 public:
  explicit TotalCrossEntropy(const NodeView& node)
      : ignore_index_(node.op(0).attr_int("ignore_index", -100)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const Values log_sums = read(call.input(0)), targets = read(call.input(1));
    double loss = 0;
    for (size_t r = 0; r < log_sums.size(); ++r)
      if (call.input(2).data<int32_t>()[r] != ignore_index_) loss += log_sums[r] - targets[r];
    write_output(call, 0, dtype_ == CHASSIS_DTYPE_F64 ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32, {}, {loss});
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor labels = call.input(2);
    const double scale = read_grad_output(call, 1)[0];
    Values by_log_sum(static_cast<size_t>(labels.num_elements())), by_target(by_log_sum.size());
    for (size_t r = 0; r < by_log_sum.size(); ++r)
      if (labels.data<int32_t>()[r] != ignore_index_) by_log_sum[r] = scale, by_target[r] = -scale;
    store_grad_input(call, 0, dtype_, labels.sizes(), by_log_sum);
    store_grad_input(call, 1, dtype_, labels.sizes(), by_target);
  }

 private:
  int64_t ignore_index_;
  uint32_t dtype_;
};

std::unique_ptr<Kernel> make_partial_cross_entropy(const NodeView& node) {
  return std::make_unique<PartialCrossEntropy>(node);
}
std::unique_ptr<Kernel> make_total_cross_entropy(const NodeView& node) {
  return std::make_unique<TotalCrossEntropy>(node);
}

std::unique_ptr<Kernel> make_cross_entropy(const NodeView& node) {
  return std::make_unique<CrossEntropy>(node.op(0).attr_int("ignore_index", -100));
}

}  // namespace

std::span<const Entry> loss_entries() {
  static constexpr Entry kEntries[] = {
      {"cross_entropy", make_cross_entropy, 3, {"ignore_index"}},
      {"partial_cross_entropy", make_partial_cross_entropy, 3, {"ignore_index", "first", "count"}},
      {"total_cross_entropy", make_total_cross_entropy, 4, {"ignore_index"}},
  };
  return kEntries;
}

}  // namespace reference
