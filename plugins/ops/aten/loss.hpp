// In-place cross entropy over rows of logits, for whole logits and for chunks.
#pragma once

#include "kernels.hpp"

namespace aten {

// Labels that gather can read, and the rows that are ignored.
struct Labels {
  Tensor index;    // [rows, 1] i64, 0 where ignored
  Tensor ignored;  // [rows, 1] bool
};

class LossRows {
 public:
  // softcap 0: none.
  LossRows(const Operators& aten, int64_t ignore_index, double softcap = 0)
      : aten_(aten), ignore_index_(ignore_index), softcap_(softcap) {}

  Labels labels(const BorrowedTensor& labels) const {
    Tensor index =
        aten_.to_dtype(aten_.view(labels, Shape{labels.num_elements(), 1}), DtypeArg{CHASSIS_DTYPE_I64}, false, true);
    Tensor ignored = aten_.eq_scalar(index, ignore_index_);
    aten_.masked_fill_(index, ignored, 0);
    return {std::move(index), std::move(ignored)};
  }

  // Caps logits in place; the derivatives are empty if nothing is capped or they are not wanted.
  Tensor cap(const BorrowedTensor& logits, bool wants_slopes) const {
    if (softcap_ == 0) return Tensor();
    aten_.mul_scalar_(logits, 1.0 / softcap_);
    aten_.tanh_(logits);
    Tensor slopes;
    if (wants_slopes) {
      slopes = aten_.mul(logits, logits);
      aten_.mul_scalar_(slopes, -1.0);
      aten_.add_scalar_(slopes, 1.0);
    }
    aten_.mul_scalar_(logits, softcap_);
    return slopes;
  }

  // Turns logits into log probabilities and adds the rows' summed loss to loss, a scalar.
  void add_loss(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& loss) const {
    aten_.log_softmax_out(logits, -1, false, logits);
    const Tensor picked = aten_.gather(logits, 1, labels.index);
    aten_.masked_fill_(picked, labels.ignored, 0);
    aten_.sub_(loss, aten_.sum(picked));
  }

  // Turns log probabilities into the gradient of scale · loss by the logits.
  void to_gradient(const BorrowedTensor& log_probabilities, const Labels& labels, const BorrowedTensor& scale) const {
    aten_.exp_(log_probabilities);
    const Tensor minus_one = Tensor(aten_.to_dtype(labels.index, DtypeArg{log_probabilities.dtype()}, false, true));
    aten_.fill_(minus_one, -1);
    aten_.scatter_add_(log_probabilities, 1, labels.index, minus_one);
    aten_.mul_(log_probabilities, scale);
    aten_.masked_fill_(log_probabilities, labels.ignored, 0);
  }

 private:
  const Operators& aten_;
  int64_t ignore_index_;
  double softcap_;
};

}  // namespace aten
