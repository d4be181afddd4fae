// Heads share this: a linear and a softcap in chunks of rows, so that logits exist only for a chunk, and become their
// gradient in place. If only some rows count, since labels of prompts are ignored, these are copied together.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels.hpp"

namespace fused {

// T is float or Bf16. Logits are fp32; if T is Bf16, the products with their gradient read it in bf16.
template <typename T>
class HeadChunks {
 public:
  // The rows of a call that are computed.
  struct Rows {
    int64_t count;
    bool are_copied;
    std::vector<int64_t> chosen;  // if they are copied: which rows
  };

  struct Chunk {
    int64_t begin, rows, vocab;  // `begin` counts the computed rows
    Tensor x;                    // [rows, in]
    Tensor logits;               // [rows, vocab], fp32
    Tensor gradient;             // of the logits, in the dtype of x; in fp32, it shares their memory
    const int32_t* labels;
    const int64_t* copied_from;  // the rows that x was copied from; NULL if x is a part of the input

    int64_t row_in_call(int64_t row) const { return copied_from ? copied_from[row] : begin + row; }
    float* logits_of(int64_t row) const { return logits.template data<float>() + row * vocab; }
    T* gradient_of(int64_t row) const { return gradient.template data<T>() + row * vocab; }
  };

  HeadChunks(const Operators& operators, const NodeView& node)
      : op_(operators),
        ignore_index_(node.op(node.num_ops() - 1).attr_int("ignore_index", -100)),
        softcap_(node.num_ops() == 3 ? static_cast<float>(node.op(1).attr_float("cap")) : 0.0f) {}

  bool ignores(int32_t label) const { return label == ignore_index_; }

  // The rows whose label is not ignored and for which counts(row) is true. A few others, such as the last ones of
  // documents, cost less than copies.
  template <typename Counts>
  Rows rows(const Call& call, Counts&& counts) const {
    const BorrowedTensor labels = call.input(1);
    const int32_t* const label = labels.data<int32_t>();
    const int64_t num_rows = labels.num_elements();
    Rows rows{0, true, {}};
    for (int64_t row = 0; row < num_rows; ++row)
      if (!ignores(label[row]) && counts(row)) rows.chosen.push_back(row);
    rows.count = static_cast<int64_t>(rows.chosen.size());
    if (10 * rows.count > 9 * num_rows) return {num_rows, false, {}};
    return rows;
  }
  Rows rows(const Call& call) const {
    return rows(call, [](int64_t) { return true; });
  }

  // Calls body(chunk) for all rows. Without `makes_gradient`, a chunk of bf16 has no gradient.
  template <typename Body>
  void for_chunks(Call& call, const Rows& computed, bool makes_gradient, Body&& body) const {
    const BorrowedTensor labels = call.input(1), weight = call.param(0);
    const int64_t rows = computed.count, vocab = weight.size(0), in = weight.size(1);
    const int64_t step = std::min(chunk_rows(labels.num_elements(), vocab, in, computed.are_copied), rows);
    if (rows == 0) return;
    const Tensor all_x = rows_of(call.input(0), in), weight_t = op_.t(weight);
    const Tensor buffer = Tensor::create(call.host(), CHASSIS_DTYPE_F32, {step, vocab});
    Tensor rounded, some_x;
    if (!std::is_same_v<T, float> && makes_gradient)
      rounded = Tensor::create(call.host(), CHASSIS_DTYPE_BF16, {step, vocab});
    if (computed.are_copied) some_x = Tensor::create(call.host(), all_x.dtype(), {step, in});
    std::vector<int32_t> some_labels(computed.are_copied ? static_cast<size_t>(step) : 0);
    for (int64_t begin = 0; begin < rows; begin += step) {
      Chunk chunk{begin, std::min(step, rows - begin), vocab, {}, {}, {}, labels.data<int32_t>() + begin, nullptr};
      if (computed.are_copied) {
        chunk.copied_from = computed.chosen.data() + begin;
        chunk.labels = some_labels.data();
        copy_rows(call, chunk, all_x, labels.data<int32_t>(), some_x, some_labels);
      }
      chunk.x = computed.are_copied ? op_.narrow(some_x, 0, 0, chunk.rows) : op_.narrow(all_x, 0, begin, chunk.rows);
      chunk.logits = op_.narrow(buffer, 0, 0, chunk.rows);
      if (std::is_same_v<T, float> || makes_gradient)
        chunk.gradient = op_.narrow(rounded ? rounded : buffer, 0, 0, chunk.rows);
      gemm(call.host(), chunk.logits, chunk.x, weight_t);
      body(std::as_const(chunk));
    }
  }

  // Caps the logits of a row. Throws if its label is no class.
  void cap(const Chunk& chunk, int64_t row) const {
    const int32_t label = chunk.labels[row];
    if (label < 0 || label >= chunk.vocab)
      throw Failure(CHASSIS_OUT_OF_RANGE, "label ", label, " is outside the vocabulary of ", chunk.vocab);
    if (softcap_ > 0.0f) loops().logits.softcap(chunk.logits_of(row), chunk.vocab, softcap_);
  }

  // Turns the capped logits of a row into the gradient of factor · (log_sum - logit of the label), rounded to T.
  void to_gradient(const Chunk& chunk, int64_t row, float log_sum, float factor) const {
    float* const x = chunk.logits_of(row);
    const int32_t label = chunk.labels[row];
    if (softcap_ > 0.0f) {
      const float t = x[label] / softcap_;
      loops().logits.softmax_capped(x, chunk.vocab, log_sum, factor, softcap_);
      x[label] -= factor * (1.0f - t * t);
    } else {
      loops().logits.softmax_scaled(x, chunk.vocab, log_sum, factor);
      x[label] -= factor;
    }
    if constexpr (!std::is_same_v<T, float>) loops().logits.to_bf16(x, chunk.gradient_of(row), chunk.vocab);
  }
  void to_zero_gradient(const Chunk& chunk, int64_t row) const {
    std::fill_n(chunk.gradient_of(row), chunk.vocab, T{});
  }

  // The chunk's rows of dx [rows of the call, in] = gradient · weight. With `adds` it is added to them; likewise where
  // rows are copied, so dx must be zero before.
  void input_gradient(Call& call, const Chunk& chunk, const Tensor& dx, bool adds) const {
    const BorrowedTensor weight = call.param(0);
    if (!adds && chunk.copied_from == nullptr)
      return multiply(call, op_.narrow(dx, 0, chunk.begin, chunk.rows), chunk.gradient, weight);
    // Rationale: some libraries add the terms of such a long product one by one to the existing sum and lose its low
    // bits.
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

  // dweight = beta · dweight + the chunk's part, in fp32 whatever T is.
  void weight_gradient(Call& call, const Chunk& chunk, float beta) const {
    gemm(call.host(), call.grad_param(0), op_.t(chunk.gradient), chunk.x, 1.0f, beta);
  }

  Tensor rows_of(const BorrowedTensor& x, int64_t columns) const {
    return op_.view(x, std::vector<int64_t>{x.num_elements() / columns, columns});
  }

 private:
  // c = a · b, where c has type T.
  void multiply(Call& call, const BorrowedTensor& c, const Tensor& a, const BorrowedTensor& b) const {
    if constexpr (std::is_same_v<T, float>)
      gemm(call.host(), c, a, b);
    else
      op_.mm_out(a, b, c);
  }

  // Copies and the products that are added to rows have no room of their own: the logits of fewer rows leave it.
  static int64_t chunk_rows(int64_t num_rows, int64_t vocab, int64_t in, bool copies) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
    const int64_t step = head_chunk_rows(num_rows, vocab), row_bytes = vocab * (kBytes == 4 ? 4 : 4 + kBytes);
    return copies ? std::max<int64_t>(1, step * row_bytes / (row_bytes + 2 * in * kBytes)) : step;
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

  const Operators& op_;
  int64_t ignore_index_;
  float softcap_;
};

}  // namespace fused
