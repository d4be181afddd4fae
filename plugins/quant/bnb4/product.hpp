// y = x · Wᵀ + bias with W in 4 bits: parts of W are dequantized into the cache and multiplied there.
#pragma once

#include <memory>

#include "chassis/ops.hpp"

namespace bnb4 {

double claim_product(const chassis::Host& host, const chassis::NodeView& node, std::string_view scheme);
void infer_product(const chassis::Host& host, const chassis::NodeView& node, int64_t block_size, chassis::Infer& out);
std::unique_ptr<chassis::Kernel> make_product(const chassis::Host& host, const chassis::NodeView& node,
                                              int64_t block_size);
// The product on CUDA; only in builds with CUDA.
std::unique_ptr<chassis::Kernel> make_device_product(const chassis::Host& host, const chassis::NodeView& node,
                                                     int64_t block_size);

}  // namespace bnb4
