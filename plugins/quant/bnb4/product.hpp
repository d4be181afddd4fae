// y = x · Wᵀ + bias with W in 4 bits, for ops linear and grouped_linear, whose rows have the weights of their experts.
#pragma once

#include <memory>

#include "chassis/experts.hpp"
#include "chassis/ops.hpp"

namespace bnb4 {

inline bool is_grouped_product(const chassis::NodeView& node) { return node.op(0).id() == "grouped_linear"; }

// Calls body(expert, first row, number of rows) for each expert that has rows.
template <typename Body>
void for_each_expert(const chassis::ExpertRows& rows, Body&& body) {
  for (int64_t e = 0; e < rows.num_experts(); ++e)
    if (rows.begin(e) < rows.end(e)) body(e, rows.begin(e), rows.end(e) - rows.begin(e));
}

double claim_product(const chassis::Host& host, const chassis::NodeView& node, std::string_view scheme);
void infer_product(const chassis::Host& host, const chassis::NodeView& node, int64_t block_size, chassis::Infer& out);
std::unique_ptr<chassis::Kernel> make_product(const chassis::Host& host, const chassis::NodeView& node,
                                              int64_t block_size);
// The product on CUDA; only in builds with CUDA.
std::unique_ptr<chassis::Kernel> make_device_product(const chassis::Host& host, const chassis::NodeView& node,
                                                     int64_t block_size);

}  // namespace bnb4
