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

// Rows of logits whose first `count` columns are the classes from `first` on.
class PartRows : public CappedRows {
 public:
  using Labels = PartIndex;  // [rows, 1]

  PartRows(const Operators& aten, const OpView& op, int64_t first, int64_t count, double softcap)
      : CappedRows(aten, softcap), first_(first), count_(count), ignore_index_(op.attr_int("ignore_index", -100)) {}

  Labels labels(const BorrowedTensor& labels) const {
    return part_index(aten_, labels, Shape{labels.num_elements(), 1}, first_, count_, ignore_index_);
  }

 protected:
  // log Σ exp of the rows, [rows, 1].
  Tensor log_sum(const BorrowedTensor& logits) const {
    return aten_.logsumexp(aten_.narrow(logits, 1, 0, count_), Shape{1}, true);
  }
  // Stores the logits of these classes; 0 for those elsewhere.
  void store_picked(const BorrowedTensor& logits, const PartIndex& at, const BorrowedTensor& out) const {
    const Tensor picked = aten_.gather(logits, 1, at.index);
    aten_.masked_fill_(picked, at.elsewhere, 0);
    aten_.copy_(out, picked);
  }
  // Turns logits into exp(logit - log_sum) · factor; log_sum and factor are [rows, 1].
  void to_probabilities(const BorrowedTensor& logits, const BorrowedTensor& log_sum,
                        const BorrowedTensor& factor) const {
    aten_.sub_(logits, log_sum);
    aten_.exp_(logits);
    aten_.mul_(logits, factor);
  }
  void zero_padding(const BorrowedTensor& gradient) const {
    const int64_t padding = gradient.size(1) - count_;
    if (padding > 0) aten_.zero_(aten_.narrow(gradient, 1, count_, padding));
  }
  // Adds scale · by to the gradient of these classes.
  void add_picked(const BorrowedTensor& gradient, const PartIndex& at, const BorrowedTensor& by,
                  double scale = 1) const {
    const Tensor values = aten_.to_dtype(by, DtypeArg{gradient.dtype()}, false, true);
    aten_.masked_fill_(values, at.elsewhere, 0);
    if (scale != 1) aten_.mul_scalar_(values, scale);
    aten_.scatter_add_(gradient, 1, at.index, values);
  }

  int64_t first_, count_;

 private:
  int64_t ignore_index_;
};

// The rows of partial_cross_entropy.
class PartialRows : public PartRows {
 public:
  PartialRows(const Operators& aten, const OpView& op, double softcap = 0)
      : PartRows(aten, op, op.attr_int("first"), op.attr_int("count"), softcap) {}

  // Stores log Σ exp of the rows, and the labels' logits; both [rows, 1].
  void store(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& log_sum,
             const BorrowedTensor& target) const {
    if (count_ == 0) {
      aten_.fill_(log_sum, -INFINITY);
      aten_.zero_(target);
      return;
    }
    store_picked(logits, labels, target);
    aten_.copy_(log_sum, PartRows::log_sum(logits));
  }

  // Turns logits into their gradient. All but the logits are [rows, 1].
  void to_gradient(const BorrowedTensor& logits, const Labels& labels, const BorrowedTensor& log_sum,
                   const BorrowedTensor& by_log_sum, const BorrowedTensor& by_target) const {
    if (count_ == 0) {
      aten_.zero_(logits);
      return;
    }
    to_probabilities(logits, log_sum, by_log_sum);
    zero_padding(logits);
    add_picked(logits, labels, by_target);
  }
};

// The gradient of output i in this shape; zeros, of the dtype of `like`, if it is absent.
inline Tensor gradient_or_zeros(const Operators& aten, const Call& call, uint32_t i, const Shape& shape,
                                const BorrowedTensor& like) {
  if (const BorrowedTensor given = call.grad_output(i)) return aten.view(given, shape);
  Tensor zeros = Tensor::create(call.host(), like.dtype(), shape, like.device_type(), like.view().device_index);
  aten.zero_(zeros);
  return zeros;
}

}  // namespace aten
