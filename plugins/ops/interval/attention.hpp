// Attention in fp32, for operands in fp32 or bf16.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace interval {

// Bytes of scratch: for the whole forward call, and per thread in forward and in backward.
uint64_t forward_bytes(const chassis::NodeView& node);
uint64_t forward_thread_bytes(const chassis::NodeView& node);
uint64_t backward_thread_bytes(const chassis::NodeView& node);

std::unique_ptr<chassis::Kernel> make_attention(const chassis::NodeView& node);

}  // namespace interval
