// The head in chunks of rows, so that whole logits never exist: logits, and the gradients of input and parameters.
#pragma once

#include "loss.hpp"

namespace aten {

// Rows computes on rows of logits; it has cap(), labels() and the type Labels.
template <class Rows>
class HeadChunks : public AtenKernel {
 public:
  // `wide_columns`: products of half types give logits in fp32, that many columns at once; 0: logits are rounded like
  // the output of a linear.
  HeadChunks(const Operators& aten, Rows rows, int64_t wide_columns = 0)
      : AtenKernel(aten), rows_(std::move(rows)), wide_columns_(wide_columns) {}

 protected:
  struct Chunk {
    int64_t begin, rows;
    Tensor x;       // [rows, in]
    Tensor logits;  // [rows, vocab], fp32 or fp64; capped
    Tensor slopes;  // derivatives of the cap, if gradients are wanted
    typename Rows::Labels labels;
  };

  template <typename Body>
  void for_chunks(Call& call, bool wants_slopes, Body&& body) const {
    const BorrowedTensor x = call.input(0), labels = call.input(1);
    const Tensor weight = cast(call.param(0), x.dtype()), weight_t = aten_.t(weight);
    const int64_t vocab = weight.size(0), rows = labels.num_elements(), step = loss_chunk_rows(rows, vocab);
    const Tensor all_x = matrix(x, weight.size(1)), all_labels = aten_.view(labels, Shape{rows});
    const Tensor buffer = create(call, x, wide(x.dtype()), Shape{std::min(step, rows), vocab});
    for (int64_t begin = 0; begin < rows; begin += step) {
      Chunk chunk;
      chunk.begin = begin;
      chunk.rows = std::min(step, rows - begin);
      chunk.x = aten_.narrow(all_x, 0, begin, chunk.rows);
      chunk.logits = aten_.narrow(buffer, 0, 0, chunk.rows);
      if (x.dtype() == chunk.logits.dtype())
        aten_.mm_out(chunk.x, weight_t, chunk.logits);
      else if (wide_columns_ > 0)
        multiply_wide(chunk, weight_t);
      else
        aten_.copy_(chunk.logits, aten_.mm(chunk.x, weight_t));
      if (call.param(1)) aten_.add_(chunk.logits, call.param(1));
      chunk.slopes = rows_.cap(chunk.logits, wants_slopes);
      chunk.labels = rows_.labels(aten_.narrow(all_labels, 0, begin, chunk.rows));
      body(chunk);
    }
  }

  // The gradient of the input as [rows, in]: zeros, or the gradient that the host passes.
  Tensor init_grad_input(Call& call) const {
    const BorrowedTensor x = call.input(0);
    if (!call.grad_input(0)) {
      call.set_grad_input(0, Tensor::create_like(call.host(), x));
      aten_.zero_(call.grad_input(0));
    }
    return matrix(call.grad_input(0), call.param(0).size(1));
  }

  void init_grad_params(Call& call) const {
    for (uint32_t i = 0; i < 2; ++i)
      if (call.grad_param(i) && call.grad_param_beta(i) == 0) aten_.zero_(call.grad_param(i));
  }

  // Rationale: some libraries add the terms of such a long product one by one to the existing sum and lose its low
  // bits, so the product is computed first and added once to a gradient that the host passes.
  void add_grad_input(Call& call, const Chunk& chunk, const Tensor& dx, bool adds) const {
    const Tensor part = aten_.narrow(dx, 0, chunk.begin, chunk.rows), weight = call.param(0).retain();
    if (!adds) return accumulate_product(part, 1, chunk.logits, weight);
    const Tensor product = Tensor::create_like(call.host(), part);
    accumulate_product(product, 0, chunk.logits, weight);
    aten_.add_(part, product);
  }

  void add_grad_params(Call& call, const Chunk& chunk) const {
    if (const BorrowedTensor dweight = call.grad_param(0))
      accumulate_product(dweight, 1, aten_.t(chunk.logits), chunk.x);
    if (const BorrowedTensor dbias = call.grad_param(1)) aten_.add_(dbias, aten_.sum_dims(chunk.logits, Shape{0}));
  }

  Rows rows_;

 private:
  void multiply_wide(const Chunk& chunk, const Tensor& weight_t) const {
    const int64_t vocab = weight_t.size(1);
    for (int64_t begin = 0; begin < vocab; begin += wide_columns_) {
      const int64_t count = std::min(wide_columns_, vocab - begin);
      accumulate_product(aten_.narrow(chunk.logits, 1, begin, count), 0, chunk.x,
                         aten_.narrow(weight_t, 1, begin, count));
    }
  }

  int64_t wide_columns_;
};

}  // namespace aten
