// linear, softcap and the log-probabilities of labels as one. The gradient of a row's result with respect to x needs
// only a factor that comes later, so forward makes it for the factor 1 while the logits exist, and saves it: training
// computes two products if the weight is frozen, and four if not.
#include "head_chunks.hpp"

namespace fused {

bool saves_input_gradient(const NodeView& node) { return node.training() && node.input(0).needs_grad(); }

namespace {

template <typename T>
class TokenLogp final : public Kernel {
 public:
  TokenLogp(const Operators& operators, const NodeView& node)
      : head_(operators, node), saves_(saves_input_gradient(node)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), logp = call.output(0);
    float* const logps = logp.data<float>();
    std::fill_n(logps, logp.num_elements(), 0.0f);
    const auto rows = head_.rows(call);
    const bool saves = saves_ && call.training();
    Tensor saved, saved_rows;
    if (saves) {
      saved = Tensor::create_like(call.host(), x);
      saved_rows = head_.rows_of(saved, call.param(0).size(1));
      if (rows.are_copied) std::memset(saved.data<T>(), 0, static_cast<size_t>(saved.num_elements()) * sizeof(T));
    }
    head_.for_chunks(call, rows, saves, [&](const Chunk& chunk) {
      parallel_for(call.host(), chunk.rows, row_grain(chunk.vocab), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          if (head_.ignores(chunk.labels[row])) {
            if (saves) head_.to_zero_gradient(chunk, row);
            continue;
          }
          head_.cap(chunk, row);
          const float* const logits = chunk.logits_of(row);
          const float log_sum = loops().logits.log_sum_exp(logits, chunk.vocab);
          logps[chunk.row_in_call(row)] = logits[chunk.labels[row]] - log_sum;
          if (saves) head_.to_gradient(chunk, row, log_sum, -1.0f);
        }
      });
      if (saves) head_.input_gradient(call, chunk, saved_rows, false);
    });
    if (saves) call.save(0, std::move(saved));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dlogp = call.grad_output(0), saved = call.saved(0);
    if (!dlogp || !call.wants_grad_input(0)) return;
    const GradInput<T> dx = grad_input<T>(call, 0, saved);
    const float* const factors = dlogp.data<float>();
    const T* const from = saved.data<T>();
    const int64_t rows = dlogp.num_elements(), in = call.param(0).size(1);
    parallel_for(call.host(), rows, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        row_loops<T>().scale(from + row * in, factors[row], dx.carry ? dx.carry + row * in : nullptr,
                             dx.data + row * in, in);
    });
  }

  // Computes the logits again, of the rows that have a gradient.
  void backward_params(Call& call) override {
    const BorrowedTensor dlogp = call.grad_output(0);
    if (!call.grad_param(0)) return;
    const float* const factors = dlogp ? dlogp.data<float>() : nullptr;
    const auto rows = head_.rows(call, [&](int64_t row) { return factors && factors[row] != 0.0f; });
    if (rows.count == 0) {
      grad_param(call, 0);
      return;
    }
    const float* const logps = call.output(0).data<float>();
    float beta = call.grad_param_beta(0);
    head_.for_chunks(call, rows, true, [&](const Chunk& chunk) {
      parallel_for(call.host(), chunk.rows, row_grain(chunk.vocab), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t in_call = chunk.row_in_call(row);
          if (head_.ignores(chunk.labels[row]) || factors[in_call] == 0.0f) {
            head_.to_zero_gradient(chunk, row);
            continue;
          }
          head_.cap(chunk, row);
          const float log_sum = chunk.logits_of(row)[chunk.labels[row]] - logps[in_call];
          head_.to_gradient(chunk, row, log_sum, -factors[in_call]);
        }
      });
      head_.weight_gradient(call, chunk, std::exchange(beta, 1.0f));
    });
  }

 private:
  using Chunk = typename HeadChunks<T>::Chunk;

  HeadChunks<T> head_;
  bool saves_;
};

}  // namespace

std::unique_ptr<Kernel> make_token_logp(Shared& shared, const NodeView& node) {
  return make_for<TokenLogp>(node.param(0).dtype(), shared.operators, node);
}

}  // namespace fused
