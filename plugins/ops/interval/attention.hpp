// The attention kernel of this plugin.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace interval {

// Bytes of scratch per thread, forward and backward.
uint64_t forward_scratch_bytes(int64_t keys);
uint64_t backward_scratch_bytes(int64_t keys, int64_t dim, int64_t value_dim, bool softcap);

std::unique_ptr<chassis::Kernel> make_attention(const chassis::NodeView& node);

}  // namespace interval
