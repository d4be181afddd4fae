// linear, softcap and cross entropy as one: logits exist only for a chunk of rows, and become their gradient in place.
// As the gradient of the loss is already known, three products per chunk give the loss and all gradients (as in Hsu et
// al., Liger Kernel, 2024).
#include "kernels.hpp"

namespace fused {

int64_t head_chunk_rows(int64_t rows, int64_t vocab) {
  constexpr int64_t kChunkElements = 16 << 20;
  return std::clamp<int64_t>(kChunkElements / std::max<int64_t>(1, vocab), 1, std::max<int64_t>(1, rows));
}

namespace {

// T is float or Bf16. Logits are fp32; if T is Bf16, the products with their gradient read it in bf16.
template <typename T>
class Head final : public Kernel {
 public:
  // softcap 0: none.
  Head(const Operators& operators, int64_t ignore_index, float softcap)
      : op_(operators), ignore_index_(ignore_index), softcap_(softcap) {}

  void forward(Call& call) override {
    double loss = 0.0;
    for_chunks(call, [&](const Chunk& chunk) { loss += loss_of(call, chunk, nullptr); });
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
  struct Chunk {
    int64_t begin, rows, vocab;
    Tensor x;         // [rows, in]
    Tensor logits;    // [rows, vocab], fp32
    Tensor gradient;  // of the logits, in the dtype of x; in fp32, it shares their memory
    const int32_t* labels;
  };

  double run(Call& call, const float* scale, bool with_input, bool with_param) const {
    const BorrowedTensor x = call.input(0), weight = call.param(0), dweight = call.grad_param(0);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (with_input && !adds) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    const Tensor dx = with_input ? rows_of(call.grad_input(0), weight.size(1)) : Tensor();
    double loss = 0.0;
    float beta = call.grad_param_beta(0);
    for_chunks(call, [&](const Chunk& chunk) {
      loss += loss_of(call, chunk, scale);
      if (with_input) {
        const Tensor part = op_.narrow(dx, 0, chunk.begin, chunk.rows);
        if (adds)
          add_product(call, part, chunk.gradient, weight);
        else
          multiply(call, part, chunk.gradient, weight);
      }
      if (with_param && dweight) {
        gemm(call.host(), dweight, op_.t(chunk.gradient), chunk.x, 1.0f, beta);  // into fp32, whatever T is
        beta = 1.0f;
      }
    });
    return loss;
  }

  // Rationale: some libraries add the terms of such a long product one by one to the existing sum and lose its low
  // bits.
  void add_product(Call& call, const Tensor& sum, const Tensor& a, const BorrowedTensor& b) const {
    const Tensor product = Tensor::create_like(call.host(), sum);
    multiply(call, product, a, b);
    T* const to = sum.data<T>();
    const T* const from = product.data<T>();
    parallel_for(call.host(), sum.num_elements(), row_grain(1),
                 [&](int64_t begin, int64_t end) { row_loops<T>().add(from + begin, to + begin, end - begin); });
  }

  // c = a · b, where c has type T.
  void multiply(Call& call, const BorrowedTensor& c, const Tensor& a, const BorrowedTensor& b) const {
    if constexpr (std::is_same_v<T, float>)
      gemm(call.host(), c, a, b);
    else
      op_.mm_out(a, b, c);
  }

  // Returns the rows' summed loss. With a scale, turns logits into the gradient of scale · loss, rounded to T.
  double loss_of(Call& call, const Chunk& chunk, const float* scale) const {
    Scratch<float> losses(call.host(), chunk.rows);
    float* logits = chunk.logits.template data<float>();
    T* gradient = chunk.gradient.template data<T>();
    parallel_for(call.host(), chunk.rows, row_grain(chunk.vocab), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        float* x = logits + row * chunk.vocab;
        const int32_t label = chunk.labels[row];
        losses[row] = 0.0f;
        if (label == ignore_index_) {
          if (scale) std::fill_n(gradient + row * chunk.vocab, chunk.vocab, T{});
          continue;
        }
        if (label < 0 || label >= chunk.vocab)
          throw Failure(CHASSIS_OUT_OF_RANGE, "label ", label, " is outside the vocabulary of ", chunk.vocab);
        if (softcap_ > 0.0f) loops().logits.softcap(x, chunk.vocab, softcap_);
        const float lse = loops().logits.log_sum_exp(x, chunk.vocab);
        losses[row] = lse - x[label];
        if (!scale) continue;
        if (softcap_ > 0.0f) {
          const float t = x[label] / softcap_;
          loops().logits.softmax_capped(x, chunk.vocab, lse, *scale, softcap_);
          x[label] -= *scale * (1.0f - t * t);
        } else {
          loops().logits.softmax_scaled(x, chunk.vocab, lse, *scale);
          x[label] -= *scale;
        }
        if constexpr (!std::is_same_v<T, float>)
          loops().logits.to_bf16(x, gradient + row * chunk.vocab, chunk.vocab);
      }
    });
    double sum = 0.0;
    for (float loss : losses.span()) sum += loss;
    return sum;
  }

  template <typename Body>
  void for_chunks(Call& call, Body&& body) const {
    const BorrowedTensor labels = call.input(1), weight = call.param(0);
    const int64_t rows = labels.num_elements(), vocab = weight.size(0), step = head_chunk_rows(rows, vocab);
    const Tensor all_x = rows_of(call.input(0), weight.size(1)), weight_t = op_.t(weight);
    const Tensor buffer = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {std::min(step, rows), vocab});
    Tensor rounded;
    if constexpr (!std::is_same_v<T, float>)
      rounded = Tensor::create(call.host(), CHASSIS_DTYPE_BF16, {std::min(step, rows), vocab});
    for (int64_t begin = 0; begin < rows; begin += step) {
      Chunk chunk{begin, std::min(step, rows - begin), vocab, {}, {}, {}, labels.data<int32_t>() + begin};
      chunk.x = op_.narrow(all_x, 0, begin, chunk.rows);
      chunk.logits = op_.narrow(buffer, 0, 0, chunk.rows);
      chunk.gradient = op_.narrow(rounded ? rounded : buffer, 0, 0, chunk.rows);
      gemm(call.host(), chunk.logits, chunk.x, weight_t);
      body(chunk);
    }
  }

  Tensor rows_of(const BorrowedTensor& x, int64_t columns) const {
    return op_.view(x, std::vector<int64_t>{x.num_elements() / columns, columns});
  }

  static void store_loss(Call& call, double loss) { *call.output(0).data<float>() = static_cast<float>(loss); }

  const Operators& op_;
  int64_t ignore_index_;
  float softcap_;
};

}  // namespace

std::unique_ptr<Kernel> make_head(Shared& shared, const NodeView& node) {
  const bool capped = node.num_ops() == 3;
  return make_for<Head>(node.param(0).dtype(), shared.operators, node.op(capped ? 2 : 1).attr_int("ignore_index", -100),
                        static_cast<float>(capped ? node.op(1).attr_float("cap") : 0.0));
}

}  // namespace fused
