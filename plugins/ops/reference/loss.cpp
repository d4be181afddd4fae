// cross_entropy: Σ over labels other than ignore_index of log Σ exp(logits) - logits[label].
#include <algorithm>
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

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
  static double log_sum_exp(const double* row, int64_t vocab) {
    const double largest = *std::max_element(row, row + vocab);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - largest);
    return largest + std::log(sum);
  }

  int64_t label_of(const BorrowedTensor& labels, int64_t r, int64_t vocab) const {
    const int64_t label = labels.data<int32_t>()[r];
    if (label != ignore_index_ && (label < 0 || label >= vocab))
      throw Failure(CHASSIS_INVALID_ARGUMENT, "label ", label, " is outside a vocabulary of ", vocab);
    return label;
  }

  int64_t ignore_index_;
};

}  // namespace

std::unique_ptr<Kernel> make_cross_entropy(const NodeView& node) {
  return std::make_unique<CrossEntropy>(node.op(0).attr_int("ignore_index", -100));
}

}  // namespace reference
