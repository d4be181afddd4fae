// Tensors as plain arrays of doubles: the oracle reads everything, computes in double, and rounds once at the end.
#pragma once

#include <algorithm>
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

// The gradient of output 0; zeros if it is absent.
inline Values read_grad_output(const Call& call, size_t count) {
  const BorrowedTensor grad = call.grad_output(0);
  return grad ? read(grad) : Values(count);
}

// The planned sizes of an operand, which in a call has the sizes of another one in the dims that both share.
class PlannedSizes {
 public:
  PlannedSizes(const OperandView& of, const OperandView& like)
      : sizes_(of.local_shape().begin(), of.local_shape().end()), num_shared_(num_shared_dims(of, like)) {}
  std::vector<int64_t> in_call(const BorrowedTensor& like) const {
    std::vector<int64_t> sizes = sizes_;
    std::copy_n(like.sizes().begin(), num_shared_, sizes.begin());
    return sizes;
  }

 private:
  std::vector<int64_t> sizes_;
  int num_shared_;
};

std::unique_ptr<Kernel> make_embedding(const NodeView& node);
std::unique_ptr<Kernel> make_score(const NodeView& node);
std::unique_ptr<Kernel> make_linear(const NodeView& node);
std::unique_ptr<Kernel> make_rms_norm(const NodeView& node);
std::unique_ptr<Kernel> make_layer_norm(const NodeView& node);
std::unique_ptr<Kernel> make_rope(const NodeView& node);
std::unique_ptr<Kernel> make_activation(const NodeView& node);
std::unique_ptr<Kernel> make_gated_activation(const NodeView& node);
std::unique_ptr<Kernel> make_add(const NodeView& node);
std::unique_ptr<Kernel> make_mul(const NodeView& node);
std::unique_ptr<Kernel> make_scale(const NodeView& node);
std::unique_ptr<Kernel> make_channel_scale(const NodeView& node);
std::unique_ptr<Kernel> make_dropout(const NodeView& node);
std::unique_ptr<Kernel> make_softcap(const NodeView& node);
std::unique_ptr<Kernel> make_reshape(const NodeView& node);
std::unique_ptr<Kernel> make_cross_entropy(const NodeView& node);
std::unique_ptr<Kernel> make_partial_cross_entropy(const NodeView& node);
std::unique_ptr<Kernel> make_total_cross_entropy(const NodeView& node);

}  // namespace reference
