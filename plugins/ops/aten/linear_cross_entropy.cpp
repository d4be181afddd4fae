// The head: linear, softcap and cross entropy as one op over chunks of rows, so that whole logits never exist.
// As the gradient of the loss is already known, one pass of three products per chunk gives the loss and all gradients.
#include "loss.hpp"

namespace aten {
namespace {

constexpr uint64_t kChunkBytes = 16u << 20;

class LinearCrossEntropy : public AtenKernel {
 public:
  LinearCrossEntropy(const Operators& aten, int64_t ignore_index, double softcap)
      : AtenKernel(aten), rows_(aten, ignore_index, softcap) {}

  void forward(Call& call) override {
    const BorrowedTensor loss = init_loss(call);
    for_chunks(call, false, [&](const Chunk& chunk) { rows_.add_loss(chunk.logits, chunk.labels, loss); });
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0) || !call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    const Tensor dx = init_grad_input(call);
    for_chunks(call, true, [&](const Chunk& chunk) {
      to_gradient(call, chunk);
      add_grad_input(call, chunk, dx, adds);
    });
  }

  void backward_params(Call& call) override {
    init_grad_params(call);
    if (!call.grad_output(0)) return;
    for_chunks(call, true, [&](const Chunk& chunk) {
      to_gradient(call, chunk);
      add_grad_params(call, chunk);
    });
  }

  void forward_backward(Call& call) override {
    if (!call.grad_output(0)) {
      init_grad_params(call);
      return forward(call);
    }
    const BorrowedTensor loss = init_loss(call);
    const bool wants_dx = call.wants_grad_input(0), adds = static_cast<bool>(call.grad_input(0));
    const Tensor dx = wants_dx ? init_grad_input(call) : Tensor();
    init_grad_params(call);
    for_chunks(call, true, [&](const Chunk& chunk) {
      rows_.add_loss(chunk.logits, chunk.labels, loss);
      finish_gradient(call, chunk);
      if (wants_dx) add_grad_input(call, chunk, dx, adds);
      add_grad_params(call, chunk);
    });
  }

 private:
  struct Chunk {
    int64_t begin, rows;
    Tensor x;       // [rows, in]
    Tensor logits;  // [rows, vocab], fp32 or fp64; capped
    Tensor slopes;  // derivatives of the cap, if gradients are wanted
    Labels labels;
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
      else
        aten_.copy_(chunk.logits, aten_.mm(chunk.x, weight_t));
      if (call.param(1)) aten_.add_(chunk.logits, call.param(1));
      chunk.slopes = rows_.cap(chunk.logits, wants_slopes);
      chunk.labels = rows_.labels(aten_.narrow(all_labels, 0, begin, chunk.rows));
      body(chunk);
    }
  }

  BorrowedTensor init_loss(Call& call) const {
    const BorrowedTensor loss = call.make_output(0, wide(call.input(0).dtype()), Shape{});
    aten_.zero_(loss);
    return loss;
  }

  // [rows, in] of the gradient: zeros, or the gradient that the host passes.
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

  void to_gradient(const Call& call, const Chunk& chunk) const {
    aten_.log_softmax_out(chunk.logits, -1, false, chunk.logits);
    finish_gradient(call, chunk);
  }

  // From log probabilities.
  void finish_gradient(const Call& call, const Chunk& chunk) const {
    rows_.to_gradient(chunk.logits, chunk.labels, call.grad_output(0));
    if (chunk.slopes) aten_.mul_(chunk.logits, chunk.slopes);
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

  LossRows rows_;
};

}  // namespace

int64_t loss_chunk_rows(int64_t rows, int64_t vocab) {
  const auto fit =
      static_cast<int64_t>(kChunkBytes / (sizeof(float) * static_cast<uint64_t>(std::max<int64_t>(vocab, 1))));
  return std::max<int64_t>(1, std::min(rows, fit));
}

uint64_t loss_chunk_bytes(int64_t rows, int64_t vocab, uint32_t dtype) {
  const uint64_t elements = static_cast<uint64_t>(loss_chunk_rows(rows, vocab)) * static_cast<uint64_t>(vocab);
  return elements * (dtype_bytes(wide(dtype)) + (dtype == wide(dtype) ? 0 : 2 * dtype_bytes(dtype)));
}

std::unique_ptr<Kernel> make_linear_cross_entropy(const Operators& aten, const NodeView& node) {
  const bool capped = node.num_ops() == 3;
  return std::make_unique<LinearCrossEntropy>(aten, node.op(capped ? 2 : 1).attr_int("ignore_index", -100),
                                              capped ? node.op(1).attr_float("cap") : 0);
}

}  // namespace aten
