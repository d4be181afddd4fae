// linear, softcap and cross entropy as one. As the gradient of the loss is already known, three products per chunk give
// the loss and all gradients (as in Hsu et al., Liger Kernel, 2024).
#include "head_chunks.hpp"

namespace fused {

int64_t head_chunk_rows(int64_t rows, int64_t vocab) {
  constexpr int64_t kChunkElements = 16 << 20;
  return std::clamp<int64_t>(kChunkElements / std::max<int64_t>(1, vocab), 1, std::max<int64_t>(1, rows));
}

namespace {

template <typename T>
class Head final : public Kernel {
 public:
  Head(const Operators& operators, const NodeView& node) : head_(operators, node) {}

  void forward(Call& call) override {
    double loss = 0.0;
    head_.for_chunks(call, head_.rows(call), false, [&](const Chunk& chunk) { loss += loss_of(call, chunk, nullptr); });
    store_loss(call, loss);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale) run(call, scale.data<float>(), call.wants_grad_input(0), false);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale)
      run(call, scale.data<float>(), false, true);
    else
      grad_param(call, 0);
  }

  void forward_backward(Call& call) override {
    const BorrowedTensor scale = call.grad_output(0);
    if (scale) return store_loss(call, run(call, scale.data<float>(), call.wants_grad_input(0), true));
    grad_param(call, 0);
    forward(call);
  }

 private:
  using Chunk = typename HeadChunks<T>::Chunk;

  double run(Call& call, const float* scale, bool with_input, bool with_param) const {
    const BorrowedTensor x = call.input(0), dweight = call.grad_param(0);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (with_input && !adds) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    const Tensor dx = with_input ? head_.rows_of(call.grad_input(0), call.param(0).size(1)) : Tensor();
    const auto rows = head_.rows(call);
    if (with_input && !adds && rows.are_copied)
      std::memset(dx.data<T>(), 0, static_cast<size_t>(dx.num_elements()) * sizeof(T));
    if (with_param && rows.count == 0) grad_param(call, 0);
    double loss = 0.0;
    float beta = call.grad_param_beta(0);
    head_.for_chunks(call, rows, true, [&](const Chunk& chunk) {
      loss += loss_of(call, chunk, scale);
      if (with_input) head_.input_gradient(call, chunk, dx, adds);
      if (with_param && dweight) head_.weight_gradient(call, chunk, std::exchange(beta, 1.0f));
    });
    return loss;
  }

  // Returns the rows' summed loss. With a scale, turns logits into the gradient of scale · loss.
  double loss_of(Call& call, const Chunk& chunk, const float* scale) const {
    Scratch<float> losses(call.host(), chunk.rows);
    parallel_for(call.host(), chunk.rows, row_grain(chunk.vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        losses[row] = 0.0f;
        if (head_.ignores(chunk.labels[row])) {
          if (scale) head_.to_zero_gradient(chunk, row);
          continue;
        }
        head_.cap(chunk, row);
        const float* const x = chunk.logits_of(row);
        const float log_sum = loops().logits.log_sum_exp(x, chunk.vocab);
        losses[row] = log_sum - x[chunk.labels[row]];
        if (scale) head_.to_gradient(chunk, row, log_sum, *scale);
      }
    });
    double sum = 0.0;
    for (float loss : losses.span()) sum += loss;
    return sum;
  }

  static void store_loss(Call& call, double loss) { *call.output(0).data<float>() = static_cast<float>(loss); }

  HeadChunks<T> head_;
};

}  // namespace

std::unique_ptr<Kernel> make_head(Shared& shared, const NodeView& node) {
  return make_for<Head>(node.param(0).dtype(), shared.operators, node);
}

}  // namespace fused
