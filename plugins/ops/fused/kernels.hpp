// Declarations shared by the kernels of this plugin.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "chassis/gemm.hpp"
#include "chassis/memory.hpp"
#include "chassis/ops.hpp"
#include "chassis/task.hpp"
#include "loops.hpp"

namespace fused {

using namespace chassis;

template <typename T>
constexpr uint32_t kDtypeOf = std::is_same_v<T, float> ? CHASSIS_DTYPE_F32 : CHASSIS_DTYPE_BF16;

// Rows per chunk of a parallel loop, so that a chunk is about 64 KiB of floats.
inline int64_t row_grain(int64_t row_elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elements));
}

// Columns per chunk of a sum over rows: one thread sums each column, in order. A chunk reads about as much as one of
// row_grain(), and at least a cache line of each row.
inline int64_t column_grain(int64_t rows) { return std::max<int64_t>(64, row_grain(rows)); }

// The gradient of input i: a new tensor like `like`, or the one that the host passes to add to; `carry` then points to
// its data.
template <typename T>
struct GradInput {
  T* data = nullptr;
  const T* carry = nullptr;
};
template <typename T>
GradInput<T> grad_input(Call& call, uint32_t i, const BorrowedTensor& like) {
  if (const BorrowedTensor sum = call.grad_input(i)) return {sum.data<T>(), sum.data<T>()};
  call.set_grad_input(i, Tensor::create_like(call.host(), like));
  return {call.grad_input(i).data<T>(), nullptr};
}

// The buffer of a parameter's gradient, zeroed if beta is 0; NULL if no gradient is wanted.
inline float* grad_param(Call& call, uint32_t i) {
  const BorrowedTensor buffer = call.grad_param(i);
  if (!buffer) return nullptr;
  float* data = buffer.data<float>();
  if (call.grad_param_beta(i) == 0.0f) std::fill(data, data + buffer.num_elements(), 0.0f);
  return data;
}

// factor · cos and factor · sin of position · inv_freq, by position; grows with the positions. Shared by all rope
// kernels.
class AngleTable {
 public:
  AngleTable(std::vector<double> inv_freq, double factor);
  bool matches(std::span<const double> inv_freq, double factor) const;
  // Makes positions below `count` available.
  void grow(int64_t count);
  const float* cosine(int64_t position) const { return cosine_.data() + position * half_; }
  const float* sine(int64_t position) const { return sine_.data() + position * half_; }

 private:
  std::vector<double> inv_freq_;
  double factor_;
  int64_t half_;
  std::vector<float> cosine_, sine_;
};

struct Shared {
  std::shared_ptr<AngleTable> angles(std::span<const double> inv_freq, double factor);

  std::vector<std::shared_ptr<AngleTable>> tables;
};

// A kernel for the dtype of the node's rows: Make<float> or Make<Bf16>.
template <template <typename T> class Make, typename... Arguments>
std::unique_ptr<Kernel> make_for(uint32_t dtype, Arguments&&... arguments) {
  if (dtype == CHASSIS_DTYPE_BF16) return std::make_unique<Make<Bf16>>(std::forward<Arguments>(arguments)...);
  return std::make_unique<Make<float>>(std::forward<Arguments>(arguments)...);
}

std::unique_ptr<Kernel> make_layer_norm(const NodeView& node);
std::unique_ptr<Kernel> make_norm(const NodeView& node, bool with_add);
std::unique_ptr<Kernel> make_rope(Shared& shared, const NodeView& node);
std::unique_ptr<Kernel> make_gated_activation(const NodeView& node);
std::unique_ptr<Kernel> make_embedding(const NodeView& node);
std::unique_ptr<Kernel> make_head(const Host& host, const NodeView& node);
std::unique_ptr<Kernel> make_token_logp(const Host& host, const NodeView& node);

// Whether forward of a head of log-probabilities saves a gradient of its input, in the shape of that input, and whether
// it saves log Σ exp of each row after that.
bool saves_input_gradient(const NodeView& node);
bool saves_log_sums(const NodeView& node);

}  // namespace fused
