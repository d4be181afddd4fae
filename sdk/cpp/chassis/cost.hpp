// Costs for claim(): estimates in nanoseconds that "auto" compares between the providers of one node. They are coarse
// and assume an AVX-512 core or a large GPU; only their order matters: the faster kernel must cost less.
#pragma once

#include <algorithm>

#include "chassis/node.hpp"
#include "chassis/task.hpp"

CHASSIS_SDK_BEGIN

constexpr double kGpuFlopsPerNs = 200'000;

// Rates of a type of devices: of one core, or of the whole device.
struct DeviceRates {
  uint32_t device_type;
  bool has_cores;       // the threads of the run share the work
  double bytes_per_ns;  // memory traffic
  double flops_per_ns;  // a library's matrix product
};
constexpr DeviceRates kDeviceRates[] = {{CHASSIS_DEVICE_CPU, true, 6, 80},
                                        {CHASSIS_DEVICE_CUDA, false, 2000, kGpuFlopsPerNs}};

// NULL for a type that is not in the table; the costs of its nodes are unknown.
constexpr const DeviceRates* rates_of(uint32_t device_type) {
  for (const DeviceRates& rates : kDeviceRates)
    if (rates.device_type == device_type) return &rates;
  return nullptr;
}

// Number of cores that share the work.
inline int64_t num_cores(const Host& host, const DeviceRates& rates) {
  return rates.has_cores ? std::max(1, num_threads(host)) : 1;
}

// Cost of a node: forward and, in training, backward; 0 if it is unknown. Its kernel moves each element of its largest
// value `passes` times in forward and twice as often in backward; a linear op also computes its product. [control]
inline double cost_ns(const Host& host, const NodeView& node, double passes) {
  const DeviceRates* rates = rates_of(node.device_type());
  if (rates == nullptr) return 0;
  const bool product = node.op(0).id() == "linear";
  double elements = static_cast<double>(std::max(node.input(0).num_elements(), node.output(0).num_elements()));
  double flops = 0;
  if (product) {
    const OperandView weight = node.param(0);
    const double rows = static_cast<double>(node.input(0).num_elements()) / static_cast<double>(weight.size(1));
    elements = std::max(elements, rows * static_cast<double>(weight.size(0)));
    flops = 2 * rows * static_cast<double>(weight.num_elements());
  }
  const double bytes = passes * elements * static_cast<double>(dtype_bytes(node.output(0).dtype()));
  const double ns = bytes / rates->bytes_per_ns + flops / rates->flops_per_ns;
  return ns * (node.training() ? 3 : 1) / static_cast<double>(num_cores(host, *rates));
}

// Cost of attention over `pairs` pairs of query and key for each head of each row, at `flops_per_ns` on each core;
// backward divides into `backward_tasks` tasks; 0 if it is unknown. [control]
inline double attention_cost_ns(const Host& host, const NodeView& node, double pairs, int64_t backward_tasks,
                                double flops_per_ns) {
  const DeviceRates* rates = rates_of(node.device_type());
  if (rates == nullptr) return 0;
  const OperandView q = node.input(0), v = node.input(2);
  const double qk = static_cast<double>(q.size(3)), vo = static_cast<double>(v.size(3));
  const double products = 2 * static_cast<double>(q.size(0) * q.size(2)) * pairs / flops_per_ns;
  const int64_t cores = num_cores(host, *rates), turns = std::max<int64_t>(1, (backward_tasks + cores - 1) / cores);
  const double busy = std::max(1.0, static_cast<double>(backward_tasks) / static_cast<double>(turns));
  const double forward = products * (qk + vo) / static_cast<double>(cores);
  return forward + (node.training() ? products * (3 * qk + 2 * vo) / busy : 0);
}

CHASSIS_SDK_END
