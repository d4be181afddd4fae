// linear, softcap and cross entropy as one: logits exist only for a chunk of rows, and become their gradient in place.
// As the gradient of the loss is already known, three products per chunk give the loss and all gradients (as in Hsu et
// al., Liger Kernel, 2024). Where many labels are ignored, as those of prompts are, the other rows are copied together,
// and only these are computed.
#include <cstring>

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
    for_chunks(call, computed_rows(call), [&](const Chunk& chunk) { loss += loss_of(call, chunk, nullptr); });
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
  // The rows of a call that are computed.
  struct Rows {
    int64_t count;
    bool are_copied;
    std::vector<int64_t> trained;  // if they are copied: which rows
  };

  struct Chunk {
    int64_t begin, rows, vocab;  // `begin` counts the computed rows
    Tensor x;                    // [rows, in]
    Tensor logits;               // [rows, vocab], fp32
    Tensor gradient;             // of the logits, in the dtype of x; in fp32, it shares their memory
    const int32_t* labels;
    const int64_t* copied_from;  // the rows that x was copied from; NULL if x is a part of the input

    int64_t row_in_call(int64_t row) const { return copied_from ? copied_from[row] : begin + row; }
  };

  double run(Call& call, const float* scale, bool with_input, bool with_param) const {
    const BorrowedTensor x = call.input(0), weight = call.param(0), dweight = call.grad_param(0);
    const bool adds = static_cast<bool>(call.grad_input(0));
    if (with_input && !adds) call.set_grad_input(0, Tensor::create_like(call.host(), x));
    const Tensor dx = with_input ? rows_of(call.grad_input(0), weight.size(1)) : Tensor();
    const Rows rows = computed_rows(call);
    if (with_input && !adds && rows.are_copied)
      std::memset(dx.data<T>(), 0, static_cast<size_t>(dx.num_elements()) * sizeof(T));
    if (with_param && rows.count == 0) grad_param(call, 0);
    double loss = 0.0;
    float beta = call.grad_param_beta(0);
    for_chunks(call, rows, [&](const Chunk& chunk) {
      loss += loss_of(call, chunk, scale);
      if (with_input) {
        if (adds || rows.are_copied)
          add_product(call, dx, chunk, weight);
        else
          multiply(call, op_.narrow(dx, 0, chunk.begin, chunk.rows), chunk.gradient, weight);
      }
      if (with_param && dweight) {
        gemm(call.host(), dweight, op_.t(chunk.gradient), chunk.x, 1.0f, beta);  // into fp32, whatever T is
        beta = 1.0f;
      }
    });
    return loss;
  }

  // Adds the gradient of the chunk's rows to theirs in `dx`. Rationale: some libraries add the terms of such a long
  // product one by one to the existing sum and lose its low bits.
  void add_product(Call& call, const Tensor& dx, const Chunk& chunk, const BorrowedTensor& weight) const {
    const int64_t in = weight.size(1);
    const Tensor product = Tensor::create(call.host(), dx.dtype(), {chunk.rows, in});
    multiply(call, product, chunk.gradient, weight);
    T* const to = dx.data<T>();
    const T* const from = product.data<T>();
    parallel_for(call.host(), chunk.rows, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        row_loops<T>().add(from + row * in, to + chunk.row_in_call(row) * in, in);
    });
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

  // A few ignored rows, such as the last ones of documents, cost less than copies.
  Rows computed_rows(Call& call) const {
    const BorrowedTensor labels = call.input(1);
    const int32_t* const label = labels.data<int32_t>();
    const int64_t num_rows = labels.num_elements();
    const auto num_trained = num_rows - std::count(label, label + num_rows, ignore_index_);
    if (10 * num_trained > 9 * num_rows) return {num_rows, false, {}};
    Rows rows{num_trained, true, {}};
    for (int64_t row = 0; row < num_rows; ++row)
      if (label[row] != ignore_index_) rows.trained.push_back(row);
    return rows;
  }

  // Copies and the products that are added to rows have no room of their own: the logits of fewer rows leave it.
  static int64_t chunk_rows(int64_t num_rows, int64_t vocab, int64_t in, bool copies) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const int64_t step = head_chunk_rows(num_rows, vocab), row_bytes = vocab * (kBytes == 4 ? 4 : 4 + kBytes);
    return copies ? std::max<int64_t>(1, step * row_bytes / (row_bytes + 2 * in * kBytes)) : step;
  }

  template <typename Body>
  void for_chunks(Call& call, const Rows& computed, Body&& body) const {
    const BorrowedTensor labels = call.input(1), weight = call.param(0);
    const int64_t rows = computed.count, vocab = weight.size(0), in = weight.size(1);
    const int64_t step = std::min(chunk_rows(labels.num_elements(), vocab, in, computed.are_copied), rows);
    if (rows == 0) return;
    const Tensor all_x = rows_of(call.input(0), in), weight_t = op_.t(weight);
    const Tensor buffer = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {step, vocab});
    Tensor rounded, some_x;
    if constexpr (!std::is_same_v<T, float>) rounded = Tensor::create(call.host(), CHASSIS_DTYPE_BF16, {step, vocab});
    if (computed.are_copied) some_x = Tensor::create(call.host(), all_x.dtype(), {step, in});
    std::vector<int32_t> some_labels(computed.are_copied ? static_cast<size_t>(step) : 0);
    for (int64_t begin = 0; begin < rows; begin += step) {
      Chunk chunk{begin, std::min(step, rows - begin), vocab, {}, {}, {}, labels.data<int32_t>() + begin, nullptr};
      if (computed.are_copied) {
        chunk.copied_from = computed.trained.data() + begin;
        chunk.labels = some_labels.data();
        copy_rows(call, chunk, all_x, labels.data<int32_t>(), some_x, some_labels);
      }
      chunk.x = computed.are_copied ? op_.narrow(some_x, 0, 0, chunk.rows) : op_.narrow(all_x, 0, begin, chunk.rows);
      chunk.logits = op_.narrow(buffer, 0, 0, chunk.rows);
      chunk.gradient = op_.narrow(rounded ? rounded : buffer, 0, 0, chunk.rows);
      gemm(call.host(), chunk.logits, chunk.x, weight_t);
      body(chunk);
    }
  }

  static void copy_rows(Call& call, const Chunk& chunk, const Tensor& all_x, const int32_t* all_labels,
                        const Tensor& some_x, std::vector<int32_t>& some_labels) {
    const int64_t in = some_x.size(1);
    const T* const from = all_x.data<T>();
    T* const to = some_x.data<T>();
    parallel_for(call.host(), chunk.rows, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::copy_n(from + chunk.copied_from[row] * in, in, to + row * in);
        some_labels[static_cast<size_t>(row)] = all_labels[chunk.copied_from[row]];
      }
    });
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
