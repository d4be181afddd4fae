// Shared by the kernels of this plugin: operators, shapes, and functions that store gradients.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "chassis/gemm.hpp"
#include "chassis/ops.hpp"
#include "operators.hpp"

namespace aten {

using Shape = std::vector<int64_t>;

inline Shape shape_of(const BorrowedTensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }
inline Shape shape_of(const OperandView& operand) {
  return {operand.local_shape().begin(), operand.local_shape().end()};
}

// Norms, angles and losses are computed in this dtype.
constexpr uint32_t wide(uint32_t dtype) { return dtype == CHASSIS_DTYPE_F64 ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32; }

// True for products of half types with an fp32 result, which LibTorch has only on CUDA. On the CPU the host multiplies
// bf16; other factors are cast first.
constexpr bool multiplies_into_wide(uint32_t device_type, uint32_t dtype, uint32_t result) {
  return device_type == CHASSIS_DEVICE_CUDA && result == CHASSIS_DTYPE_F32 &&
         (dtype == CHASSIS_DTYPE_BF16 || dtype == CHASSIS_DTYPE_F16);
}

// Formulas process rows in slabs, so that an fp32 temporary has at most this size.
constexpr int64_t kSlabBytes = 16 << 20;
// Calls body(first row, number of rows) for slabs that cover all rows.
template <typename Body>
void for_slabs(int64_t rows, int64_t elements_per_row, Body&& body) {
  const int64_t step = std::max<int64_t>(1, kSlabBytes / (4 * std::max<int64_t>(1, elements_per_row)));
  for (int64_t begin = 0; begin < rows; begin += step) body(begin, std::min(step, rows - begin));
}

// Indices into a part of a table; both tensors have the given shape.
struct PartIndex {
  Tensor index;      // i64, 0 where the part lacks it
  Tensor elsewhere;  // bool: the part lacks it
};
// The part has the `count` indices from `first` on; `ignored` is an index that no part has.
inline PartIndex part_index(const Operators& aten, const BorrowedTensor& indices, const Shape& shape, int64_t first,
                            int64_t count, int64_t ignored) {
  Tensor index = aten.to_dtype(aten.view(indices, shape), DtypeArg{CHASSIS_DTYPE_I64}, false, true);
  const Tensor is_ignored = aten.eq_scalar(index, ignored);
  aten.add_scalar_(index, -first);
  const Tensor here = aten.to_dtype(aten.ge_scalar(index, 0), DtypeArg{CHASSIS_DTYPE_I64}, false, true);
  aten.masked_fill_(here, aten.ge_scalar(index, count), 0);
  aten.masked_fill_(here, is_ignored, 0);
  Tensor elsewhere = aten.eq_scalar(here, 0);
  aten.masked_fill_(index, elsewhere, 0);
  return {std::move(index), std::move(elsewhere)};
}

class AtenKernel : public Kernel {
 public:
  explicit AtenKernel(const Operators& aten) : aten_(aten) {}

 protected:
  // A contiguous tensor as [rows, columns].
  Tensor matrix(const BorrowedTensor& x, int64_t columns) const {
    return aten_.view(x, Shape{columns == 0 ? 0 : x.num_elements() / columns, columns});
  }
  // The same tensor if it already has the dtype.
  Tensor cast(const BorrowedTensor& x, uint32_t dtype) const {
    return x.dtype() == dtype ? x.retain() : aten_.to_dtype(x, DtypeArg{dtype});
  }
  // A copy of logits as [rows, vocab], in the dtype of losses.
  Tensor wide_copy(const BorrowedTensor& logits) const {
    return aten_.to_dtype(matrix(logits, logits.size(-1)), DtypeArg{wide(logits.dtype())}, false, true);
  }
  Tensor create(const Call& call, const BorrowedTensor& like, uint32_t dtype, const Shape& shape) const {
    return Tensor::create(call.host(), dtype, shape, like.device_type(), like.view().device_index);
  }

  // Stores the gradient of input i, or adds it to the one that the host passes.
  void store_grad_input(Call& call, uint32_t i, uint32_t dtype, Tensor gradient) const {
    if (!call.wants_grad_input(i)) return;
    if (const BorrowedTensor sum = call.grad_input(i))
      aten_.add_(sum, gradient);
    else
      call.set_grad_input(i, cast(gradient, dtype));
  }
  // Stores the gradient of parameter i in its buffer, or adds it there.
  void store_grad_param(Call& call, uint32_t i, const Tensor& gradient) const {
    if (const BorrowedTensor buffer = call.grad_param(i)) accumulate(buffer, call.grad_param_beta(i), gradient);
  }
  // buffer = beta · buffer + gradient; beta is 0 or 1.
  void accumulate(const BorrowedTensor& buffer, double beta, const Tensor& gradient) const {
    if (beta != 0)
      aten_.add_(buffer, gradient);
    else
      aten_.copy_(buffer, gradient);
  }
  // True for c = a · b of few rows with a weight that is stored transposed, as in generation. The host reads the weight
  // once, and a row of c has the same bits whatever the number of rows.
  static bool has_few_rows(const BorrowedTensor& c, const BorrowedTensor& b) {
    constexpr int64_t kFewRows = 16;
    return c.is_cpu() && c.size(0) <= kFewRows && b.stride(0) == 1 &&
           (c.dtype() == CHASSIS_DTYPE_F32 || c.dtype() == CHASSIS_DTYPE_BF16);
  }
  // c = alpha · a · b + beta · c, all of one dtype. On the CPU the host has the fastest products of fp32.
  void multiply(const BorrowedTensor& c, const BorrowedTensor& a, const BorrowedTensor& b, double alpha = 1,
                double beta = 0) const {
    if ((c.is_cpu() && c.dtype() == CHASSIS_DTYPE_F32) || has_few_rows(c, b))
      gemm(aten_.host, c, a, b, static_cast<float>(alpha), static_cast<float>(beta));
    else if (alpha == 1 && beta == 0)
      aten_.mm_out(a, b, c);
    else
      aten_.addmm_(c, a, b, beta, alpha);
  }
  // buffer = beta · buffer + a · b, in the buffer's dtype.
  void accumulate_product(const BorrowedTensor& buffer, double beta, const Tensor& a, const Tensor& b) const {
    if (a.dtype() == b.dtype() && multiplies_into_wide(a.device_type(), a.dtype(), buffer.dtype())) {
      if (beta == 0)
        aten_.mm_dtype_out(a, b, DtypeArg{buffer.dtype()}, buffer);
      else
        aten_.add_(buffer, aten_.mm_dtype(a, b, DtypeArg{buffer.dtype()}));
      return;
    }
    const bool is_bf16 = a.dtype() == CHASSIS_DTYPE_BF16 && b.dtype() == CHASSIS_DTYPE_BF16;
    if (is_bf16 && a.is_cpu() && buffer.dtype() == CHASSIS_DTYPE_F32)
      return gemm(aten_.host, buffer, a, b, 1, static_cast<float>(beta));
    multiply(buffer, cast(a, buffer.dtype()), cast(b, buffer.dtype()), 1, beta);
  }

  const Operators& aten_;
};

// A pattern that the plugin computes. Each source has those of its kernels.
struct Entry {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const Operators& aten, const NodeView& node);
  uint32_t keeps_inputs = 0;       // bits of inputs that backward reads
  uint32_t overwrites_inputs = 0;  // bits of inputs whose memory the output may take
  double passes;                   // for cost_ns
  std::array<std::string_view, 6> attrs = {};
  void (*check)(const NodeView& node) = nullptr;  // refuses what the attrs and dtypes do not
  void (*workspace)(const Host& host, const NodeView& node, Infer& out) = nullptr;
  bool keeps_for_weight = false;    // backward reads the inputs only for the gradient of a parameter
  bool keeps_x_for_weight = false;  // as above, but only of input 0
  bool is_weighted = false;         // backward reads input 0 for the gradient of input 2
  bool keeps_output = false;        // backward reads output 0
  bool makes_outputs = false;       // forward allocates its outputs itself
  int saved_rows = 0;               // tensors with a value for each row that training saves
  bool is_fused_backward = false;   // gradients are computed in forward
  bool writes_inner = false;        // values between the ops are outputs too
  bool saves_gradient = false;      // training saves a gradient of input 0, if that is wanted
};
std::span<const Entry> branch_entries();
std::span<const Entry> cross_entropy_entries();
std::span<const Entry> dropout_entries();
std::span<const Entry> elementwise_entries();
std::span<const Entry> expert_entries();
std::span<const Entry> expert_row_entries();
std::span<const Entry> join_entries();
std::span<const Entry> linear_entries();
std::span<const Entry> linear_cross_entropy_entries();
std::span<const Entry> lookup_entries();
std::span<const Entry> norm_entries();
std::span<const Entry> partial_cross_entropy_entries();
std::span<const Entry> rope_entries();
std::span<const Entry> router_entries();
std::span<const Entry> score_entries();
std::span<const Entry> token_logp_entries();
std::span<const Entry> topk_logp_entries();

// Number of embedding columns whose gradient is summed at once.
int64_t embedding_columns(int64_t vocab, int64_t columns);

// Number of rows of logits computed at once, and the bytes that a pass over them needs.
int64_t loss_chunk_rows(int64_t rows, int64_t vocab);
uint64_t loss_chunk_bytes(int64_t rows, int64_t vocab, uint32_t dtype);

}  // namespace aten
