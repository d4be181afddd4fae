// Attention in fp32, also of operands in bf16.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace interval {

// Bytes of scratch: of the whole call forward, and per thread forward and backward.
uint64_t forward_bytes(const chassis::NodeView& node);
uint64_t forward_thread_bytes(const chassis::NodeView& node);
uint64_t backward_thread_bytes(const chassis::NodeView& node);

std::unique_ptr<chassis::Kernel> make_attention(const chassis::NodeView& node);

}  // namespace interval
