// The kernels for the CPU and for CUDA.
#pragma once

#include <memory>

#include "mask.hpp"
#include "operators.hpp"

namespace sdpa {

// An explicit mask for the CPU, kept between calls: all layers of a step use the same, or the same two if they compute
// the queries of a row in two calls.
struct MaskCache {
  MaskSpec spec;
  Problem problem;
  Tensor bias;  // [batch or 1, 1, time, keys]: 0 or -inf, in the dtype of the queries
};

struct Shared {
  explicit Shared(const Host& host) : aten(host) {}
  Operators aten;
  static constexpr size_t kMaxMasks = 2;
  std::vector<MaskCache> masks;  // the last used ones, the oldest first
};

// saved(0): the softmax's log Σ exp, [B, T, h].
std::unique_ptr<Kernel> make_cpu_kernel(Shared& shared, const NodeView& node);
uint32_t sum_dtype(uint32_t dtype);
// For a node with key_part; saved(0): the log Σ exp, [B, h, T].
std::unique_ptr<Kernel> make_partial_kernel(Shared& shared, const NodeView& node);

// The number of each position's chunk in its document, i32 like the ids. Reads the ids on the host.
Tensor chunk_numbers(const Operators& aten, const Host& host, const BorrowedTensor& documents, int64_t chunk);

// Computes by products over tiles of queries in fp32, on any device; saved(0): the log Σ exp, [B, h, T] in fp32.
std::unique_ptr<Kernel> make_tiles(Shared& shared, const NodeView& node);
// The reason why tiles cannot compute the node, or "".
std::string tiles_refusal(const NodeView& node);
void infer_tiles(const NodeView& node, bool has_workspace, Infer& out);

// The reason why LibTorch's CUDA kernels cannot compute the node, or "".
std::string cuda_refusal(const NodeView& node);
// saved(0): log Σ exp as the chosen kernel lays it out.
std::unique_ptr<Kernel> make_cuda_kernel(Shared& shared, const NodeView& node);
Shape cuda_saved_shape(const NodeView& node);
uint64_t cuda_workspace_bytes(const NodeView& node, bool backward);
// For a node with query_part or key_part: flash attention where it supports that, else tiles. Saves as tiles do.
std::unique_ptr<Kernel> make_cuda_part_kernel(Shared& shared, const NodeView& node);
bool cuda_part_uses_flash(const NodeView& node);

}  // namespace sdpa
