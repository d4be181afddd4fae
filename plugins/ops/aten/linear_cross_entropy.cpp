// The head: linear, softcap and cross entropy as one op over chunks of rows, so that whole logits never exist.
// As the gradient of the loss is already known, one pass of three products per chunk gives the loss and all gradients.
#include "head_chunks.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

constexpr uint64_t kChunkBytes = 16u << 20;

class LinearCrossEntropy : public HeadChunks<LossRows> {
 public:
  using HeadChunks::HeadChunks;

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
  BorrowedTensor init_loss(Call& call) const {
    const BorrowedTensor loss = call.make_output(0, wide(call.input(0).dtype()), Shape{});
    aten_.zero_(loss);
    return loss;
  }

  void to_gradient(const Call& call, const Chunk& chunk) const {
    aten_.log_softmax_out(chunk.logits, -1, false, chunk.logits);
    finish_gradient(call, chunk);
  }

  // chunk.logits are log probabilities.
  void finish_gradient(const Call& call, const Chunk& chunk) const {
    rows_.to_gradient(chunk.logits, chunk.labels, call.grad_output(0));
    if (chunk.slopes) aten_.mul_(chunk.logits, chunk.slopes);
  }
};

std::unique_ptr<Kernel> make_linear_cross_entropy(const Operators& aten, const NodeView& node) {
  const bool capped = node.num_ops() == 3;
  return std::make_unique<LinearCrossEntropy>(aten,
                                              LossRows(aten, node.op(capped ? 2 : 1).attr_int("ignore_index", -100),
                                                       capped ? node.op(1).attr_float("cap") : 0));
}

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

std::span<const Entry> linear_cross_entropy_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear+softcap+cross_entropy",
       .make = make_linear_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 11,
       .attrs = {"cap", "ignore_index"},
       .workspace = head_workspace,
       .is_fused_backward = true},
      {.pattern = "linear+cross_entropy",
       .make = make_linear_cross_entropy,
       .keeps_inputs = 0b11,
       .passes = 8,
       .attrs = {"ignore_index"},
       .workspace = head_workspace,
       .is_fused_backward = true},
  };
  return kEntries;
}

}  // namespace aten
