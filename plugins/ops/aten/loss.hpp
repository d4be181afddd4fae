// In-place cross entropy over rows of logits, for whole logits and for chunks.
#pragma once

#include <cmath>

#include "kernels.hpp"

namespace aten {

class CappedRows {
 public:
  // softcap 0: none.
  CappedRows(const Operators& aten, double softcap) : aten_(aten), softcap_(softcap) {}

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

 protected:
  const Operators& aten_;

 private:
  double softcap_;
};

class LossRows : public CappedRows {
 public:
  // Labels that gather can read, and the rows that are ignored.
  struct Labels {
    Tensor index;    // [rows, 1] i64, 0 where ignored
    Tensor ignored;  // [rows, 1] bool
  };

  LossRows(const Operators& aten, int64_t ignore_index, double softcap = 0)
      : CappedRows(aten, softcap), ignore_index_(ignore_index) {}

  Labels labels(const BorrowedTensor& labels) const {
    Tensor index =
        aten_.to_dtype(aten_.view(labels, Shape{labels.num_elements(), 1}), DtypeArg{CHASSIS_DTYPE_I64}, false, true);
    Tensor ignored = aten_.eq_scalar(index, ignore_index_);
    aten_.masked_fill_(index, ignored, 0);
    return {std::move(index), std::move(ignored)};
  }

  // Turns logits into log probabilities. Returns those of the labels, [rows, 1]; 0 where a label is ignored.
  Tensor pick(const BorrowedTensor& logits, const Labels& labels) const {
    aten_.log_softmax_out(logits, -1, false, logits);
    Tensor picked = aten_.gather(logits, 1, labels.index);
    aten_.masked_fill_(picked, labels.ignored, 0);
    return picked;
  }

  // Turns logits into log probabilities and adds the rows' summed loss to loss, a scalar.
  void add_loss(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& loss) const {
    aten_.sub_(loss, aten_.sum(pick(logits, labels)));
  }

  // Turns log probabilities into the gradient of the sum of scale · loss of a row with respect to the logits; scale is
  // a scalar or [rows, 1].
  void to_gradient(const BorrowedTensor& log_probabilities, const Labels& labels, const BorrowedTensor& scale) const {
    aten_.exp_(log_probabilities);
    const Tensor minus_one = Tensor(aten_.to_dtype(labels.index, DtypeArg{log_probabilities.dtype()}, false, true));
    aten_.fill_(minus_one, -1);
    aten_.scatter_add_(log_probabilities, 1, labels.index, minus_one);
    aten_.mul_(log_probabilities, scale);
    aten_.masked_fill_(log_probabilities, labels.ignored, 0);
  }

 private:
  int64_t ignore_index_;
};

// Rows of logits for a part of the classes: the first `count` columns are the classes from `first` on.
class PartialRows : public CappedRows {
 public:
  using Labels = PartIndex;  // [rows, 1]

  PartialRows(const Operators& aten, const OpView& op, double softcap = 0)
      : CappedRows(aten, softcap),
        ignore_index_(op.attr_int("ignore_index", -100)),
        first_(op.attr_int("first")),
        count_(op.attr_int("count")) {}

  Labels labels(const BorrowedTensor& labels) const {
    return part_index(aten_, labels, Shape{labels.num_elements(), 1}, first_, count_, ignore_index_);
  }

  // Stores log Σ exp of the rows, and the labels' logits; both [rows, 1].
  void store(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& log_sum,
             const BorrowedTensor& target) const {
    if (count_ == 0) {
      aten_.fill_(log_sum, -INFINITY);
      aten_.zero_(target);
      return;
    }
    const Tensor picked = aten_.gather(logits, 1, labels.index);
    aten_.masked_fill_(picked, labels.elsewhere, 0);
    aten_.copy_(target, picked);
    aten_.copy_(log_sum, aten_.logsumexp(aten_.narrow(logits, 1, 0, count_), Shape{1}, true));
  }

  // Turns logits into their gradient. All but the logits are [rows, 1].
  void to_gradient(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& log_sum,
                   const BorrowedTensor& by_log_sum, const BorrowedTensor& by_target) const {
    if (count_ == 0) {
      aten_.zero_(logits);
      return;
    }
    aten_.sub_(logits, log_sum);
    aten_.exp_(logits);
    aten_.mul_(logits, by_log_sum);
    const int64_t padding = logits.size(1) - count_;
    if (padding > 0) aten_.zero_(aten_.narrow(logits, 1, count_, padding));
    const Tensor one = aten_.to_dtype(by_target, DtypeArg{logits.dtype()}, false, true);
    aten_.masked_fill_(one, labels.elsewhere, 0);
    aten_.scatter_add_(logits, 1, labels.index, one);
  }

 private:
  int64_t ignore_index_, first_, count_;
};

}  // namespace aten
