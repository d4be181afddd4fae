// Attention in bf16 by AMX.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace interval {

// Bytes of scratch: of the whole call, and per thread.
uint64_t amx_forward_bytes(int64_t rows, int64_t keys, int64_t key_heads, int64_t dim, int64_t value_dim);
uint64_t amx_forward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim);
uint64_t amx_backward_thread_bytes(int64_t keys, int64_t dim, int64_t value_dim);

// The processor has AMX.
std::unique_ptr<chassis::Kernel> make_amx_attention(const chassis::NodeView& node);

}  // namespace interval
