// Declarations shared by the kernels of this plugin.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "chassis/experts.hpp"
#include "chassis/gemm.hpp"
#include "chassis/ops.hpp"
#include "chassis/row_loops.hpp"
#include "chassis/task.hpp"
#include "loops.hpp"

namespace grouped {

using namespace chassis;

// Rows per chunk of a parallel loop, so that a chunk is about 64 KiB of floats.
inline int64_t row_grain(int64_t row_elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, row_elements));
}

inline ExpertRows rows_of(const BorrowedTensor& experts) { return {experts.data<int32_t>(), experts.num_elements()}; }

// The gradient of input i: the tensor that the host passes to add to, or a new one.
template <typename T>
struct GradInput {
  T* data = nullptr;
  bool adds = false;
  void store(int64_t i, float value) const { data[i] = narrow<T>(adds ? wide(data[i]) + value : value); }
};
template <typename T>
GradInput<T> grad_input(Call& call, uint32_t i, uint32_t dtype, std::span<const int64_t> sizes) {
  if (const BorrowedTensor sum = call.grad_input(i)) return {sum.data<T>(), true};
  call.set_grad_input(i, Tensor::create(call.host(), dtype, sizes));
  return {call.grad_input(i).data<T>(), false};
}

// Memory of a call, which the host counts.
template <typename T>
class Scratch {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, Bf16>);

 public:
  Scratch(const Host& host, int64_t count)
      : tensor_(Tensor::create(host, std::is_same_v<T, float> ? CHASSIS_DTYPE_F32 : CHASSIS_DTYPE_BF16,
                               std::vector<int64_t>{count})),
        data_(tensor_.data<T>()) {}
  T* data() const noexcept { return data_; }

 private:
  Tensor tensor_;
  T* data_;
};

// Products that are computed side by side.
using Problems = std::vector<chassis_gemm_problem_t>;

// The rows that a run of grouped_linear+combine multiplies at once, which may be those of several experts.
int64_t rows_at_once(const OperandView& weight);

std::unique_ptr<Kernel> make_top_experts(const NodeView& node);
std::unique_ptr<Kernel> make_expert_weights(const NodeView& node);
std::unique_ptr<Kernel> make_dispatch(const NodeView& node);
std::unique_ptr<Kernel> make_combine(const NodeView& node);
std::unique_ptr<Kernel> make_gate_tokens(const NodeView& node);
std::unique_ptr<Kernel> make_linear(const NodeView& node);
std::unique_ptr<Kernel> make_combined_linear(const NodeView& node);

// A kernel for the dtype of the node's rows: Make<float> or Make<Bf16>.
template <template <typename T> class Make>
std::unique_ptr<Kernel> make_for(uint32_t dtype, const NodeView& node) {
  if (dtype == CHASSIS_DTYPE_BF16) return std::make_unique<Make<Bf16>>(node);
  return std::make_unique<Make<float>>(node);
}

}  // namespace grouped
