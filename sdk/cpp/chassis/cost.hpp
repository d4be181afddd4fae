// Costs for claim(): estimates in nanoseconds that "auto" compares between the providers of one node. They are coarse
// and assume an AVX-512 core or a large GPU; only their order matters: the faster kernel must cost less.
#pragma once

#include <algorithm>

#include "chassis/node.hpp"
#include "chassis/task.hpp"

CHASSIS_SDK_BEGIN

// Rates of one core, or of a whole GPU.
constexpr double kCoreBytesPerNs = 6, kGpuBytesPerNs = 2000;      // memory traffic
constexpr double kCoreFlopsPerNs = 80, kGpuFlopsPerNs = 200'000;  // a library's matrix product

// Number of cores that share the work.
inline int64_t num_cores(const Host& host, const NodeView& node) {
  return node.device_type() == CHASSIS_DEVICE_CUDA ? 1 : std::max(1, num_threads(host));
}

// Cost of a node: forward and, in training, backward. Its kernel moves each element of its largest value `passes` times
// in forward and twice as often in backward; a linear op also computes its product. [control]
inline double cost_ns(const Host& host, const NodeView& node, double passes) {
  const bool cuda = node.device_type() == CHASSIS_DEVICE_CUDA, product = node.op(0).id() == "linear";
  double elements = static_cast<double>(std::max(node.input(0).num_elements(), node.output(0).num_elements()));
  double flops = 0;
  if (product) {
    const OperandView weight = node.param(0);
    const double rows = static_cast<double>(node.input(0).num_elements()) / static_cast<double>(weight.size(1));
    elements = std::max(elements, rows * static_cast<double>(weight.size(0)));
    flops = 2 * rows * static_cast<double>(weight.num_elements());
  }
  const double bytes = passes * elements * static_cast<double>(dtype_bytes(node.output(0).dtype()));
  const double ns =
      bytes / (cuda ? kGpuBytesPerNs : kCoreBytesPerNs) + flops / (cuda ? kGpuFlopsPerNs : kCoreFlopsPerNs);
  return ns * (node.training() ? 3 : 1) / static_cast<double>(num_cores(host, node));
}

// Cost of attention over `pairs` pairs of query and key for each head of each row, at `flops_per_ns` on each core;
// backward divides into `backward_tasks` tasks. [control]
inline double attention_cost_ns(const Host& host, const NodeView& node, double pairs, int64_t backward_tasks,
                                double flops_per_ns) {
  const OperandView q = node.input(0), v = node.input(2);
  const double qk = static_cast<double>(q.size(3)), vo = static_cast<double>(v.size(3));
  const double products = 2 * static_cast<double>(q.size(0) * q.size(2)) * pairs / flops_per_ns;
  const int64_t cores = num_cores(host, node), turns = std::max<int64_t>(1, (backward_tasks + cores - 1) / cores);
  const double busy = std::max(1.0, static_cast<double>(backward_tasks) / static_cast<double>(turns));
  const double forward = products * (qk + vo) / static_cast<double>(cores);
  return forward + (node.training() ? products * (3 * qk + 2 * vo) / busy : 0);
}

CHASSIS_SDK_END
