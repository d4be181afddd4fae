// Tensors as plain arrays of doubles: the oracle reads everything, computes in double, and rounds once at the end.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "chassis/bf16.hpp"
#include "chassis/ops.hpp"

namespace reference {

using namespace chassis;
using Values = std::vector<double>;

inline Values read(const BorrowedTensor& tensor) {
  if (!tensor.is_contiguous()) throw Failure(CHASSIS_INTERNAL, "the reference got a tensor that is not contiguous");
  const auto count = static_cast<size_t>(tensor.num_elements());
  Values values(count);
  for (size_t i = 0; i < count; ++i) {
    switch (tensor.dtype()) {
      case CHASSIS_DTYPE_F32:
        values[i] = tensor.data<float>()[i];
        break;
      case CHASSIS_DTYPE_F64:
        values[i] = tensor.data<double>()[i];
        break;
      case CHASSIS_DTYPE_BF16:
        values[i] = from_bf16(tensor.data<uint16_t>()[i]);
        break;
      case CHASSIS_DTYPE_I32:
        values[i] = tensor.data<int32_t>()[i];
        break;
      default:
        throw Failure(CHASSIS_UNIMPLEMENTED, "the reference does not read ", dtype_name(tensor.dtype()));
    }
  }
  return values;
}

// tensor = keep · tensor + values
inline void write(const BorrowedTensor& tensor, const Values& values, double keep = 0) {
  if (!tensor.is_contiguous() || static_cast<size_t>(tensor.num_elements()) != values.size())
    throw Failure(CHASSIS_INTERNAL, values.size(), " values for a tensor of ", tensor.num_elements());
  const Values old = keep != 0 ? read(tensor) : Values(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i] + keep * old[i];
    switch (tensor.dtype()) {
      case CHASSIS_DTYPE_F32:
        tensor.data<float>()[i] = static_cast<float>(value);
        break;
      case CHASSIS_DTYPE_F64:
        tensor.data<double>()[i] = value;
        break;
      case CHASSIS_DTYPE_BF16:
        tensor.data<uint16_t>()[i] = to_bf16(value);
        break;
      default:
        throw Failure(CHASSIS_UNIMPLEMENTED, "the reference does not write ", dtype_name(tensor.dtype()));
    }
  }
}

// An attribute as ops of this dtype have it.
inline double rounded_to(uint32_t dtype, double value) {
  return dtype == CHASSIS_DTYPE_F64    ? value
         : dtype == CHASSIS_DTYPE_BF16 ? from_bf16(to_bf16(value))
                                       : static_cast<double>(static_cast<float>(value));
}

// The dtype of an output that op.h gives as f32: f64 in a program in f64.
inline uint32_t at_least_f32(uint32_t dtype) {
  return dtype == CHASSIS_DTYPE_F64 ? CHASSIS_DTYPE_F64 : CHASSIS_DTYPE_F32;
}

inline void write_output(Call& call, uint32_t i, uint32_t dtype, const std::vector<int64_t>& sizes,
                         const Values& values) {
  write(call.make_output(i, dtype, sizes), values);
}

// Adds to the gradient that the host passes, else makes a tensor; `sizes` and `dtype` are those of the input.
inline void store_grad_input(Call& call, uint32_t i, uint32_t dtype, std::span<const int64_t> sizes,
                             const Values& values) {
  if (!call.wants_grad_input(i)) return;
  const bool add = static_cast<bool>(call.grad_input(i));
  if (!add) call.set_grad_input(i, Tensor::create(call.host(), dtype, sizes));
  write(call.grad_input(i), values, add ? 1 : 0);
}

inline void store_grad_param(Call& call, uint32_t i, const Values& values) {
  if (const BorrowedTensor buffer = call.grad_param(i)) write(buffer, values, call.grad_param_beta(i));
}

// The gradient of output i; zeros if it is absent.
inline Values read_grad_output(const Call& call, size_t count, uint32_t i = 0) {
  const BorrowedTensor grad = call.grad_output(i);
  return grad ? read(grad) : Values(count);
}

inline std::vector<int64_t> sizes_of(const BorrowedTensor& tensor) {
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

inline double log_sum_exp(const double* row, int64_t count) {
  const double largest = *std::max_element(row, row + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

// An op that the plugin computes. Each source has those of its kernels.
struct Entry {
  std::string_view pattern;
  std::unique_ptr<Kernel> (*make)(const NodeView& node);
  uint32_t keeps_inputs;  // bits of inputs that backward reads
  std::array<std::string_view, 6> attrs;
};
std::span<const Entry> dropout_entries();
std::span<const Entry> elementwise_entries();
std::span<const Entry> expert_entries();
std::span<const Entry> join_entries();
std::span<const Entry> linear_entries();
std::span<const Entry> loss_entries();
std::span<const Entry> lookup_entries();
std::span<const Entry> norm_entries();
std::span<const Entry> rope_entries();
std::span<const Entry> router_entries();
std::span<const Entry> topk_logp_entries();

}  // namespace reference
