// Attention multiplied in bf16, by AMX or AVX512-BF16.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace interval {

// Bytes of scratch: for the whole call, and per thread.
uint64_t bf16_forward_bytes(int64_t rows, int64_t keys, int64_t key_heads, int64_t dim, int64_t value_dim);
uint64_t bf16_forward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim);
uint64_t bf16_backward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim);

// Requires that bf16_blocks() is not NULL.
std::unique_ptr<chassis::Kernel> make_bf16_attention(const chassis::NodeView& node);

}  // namespace interval
