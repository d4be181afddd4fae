// The kernels for the CPU and for CUDA.
#pragma once

#include <memory>

#include "mask.hpp"
#include "operators.hpp"

namespace sdpa {

// An explicit mask for the CPU, kept between calls: all layers of a step use the same.
struct MaskCache {
  MaskSpec spec;
  Problem problem;
  Tensor bias;  // [batch or 1, 1, time, keys]: 0 or -inf, in the dtype of the queries
};

struct Shared {
  explicit Shared(const Host& host) : aten(host) {}
  Operators aten;
  std::unique_ptr<MaskCache> mask;
};

// saved(0): the softmax's log Σ exp, [B, T, h].
std::unique_ptr<Kernel> make_cpu_kernel(Shared& shared, const NodeView& node);
uint32_t sum_dtype(uint32_t dtype);
// Of a node with key_part; saved(0): the log Σ exp, [B, h, T].
std::unique_ptr<Kernel> make_partial_kernel(Shared& shared, const NodeView& node);

// The reason why LibTorch's CUDA kernels cannot compute the node, or "".
std::string cuda_refusal(const NodeView& node);
// saved(0): log Σ exp as the chosen kernel lays it out.
std::unique_ptr<Kernel> make_cuda_kernel(Shared& shared, const NodeView& node);
Shape cuda_saved_shape(const NodeView& node);
uint64_t cuda_workspace_bytes(const NodeView& node, bool backward);

}  // namespace sdpa
