// Tensors that come back from plugins: compared with what was asked for, where they come back, so that whoever made
// them is named. Metadata alone is read; that costs a few nanoseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/tensor.h"
#include "host/service/tensor.hpp"

namespace chassis {

// Handles that a call lends to a plugin, under the name of what they are: "input".
struct LentHandles {
  const char* what;
  std::span<const chassis_tensor_t> handles;
};
// Why a handle that came back is not the plugin's to give, such as "the handle of input 1, which is only lent"; empty
// if it is. Reads nothing behind the handle. `tracked`: the plugin has handles from the host's tables alone, so that
// one that does not stand in the ledger is none.
std::string why_not_its_own(chassis_tensor_t handle, bool tracked, std::span<const LentHandles> lent);

struct ExpectedTensor {
  Dtype dtype;
  Device device;
  std::span<const int64_t> sizes;
};

// A contiguous tensor of this dtype, device and shape.
bool is_as_expected(chassis_tensor_t tensor, const ExpectedTensor& expected);
// Why it is not: "as bf16[2, 3] on cpu, expected f32[2, 4] on cpu".
std::string difference_from(chassis_tensor_t tensor, const ExpectedTensor& expected);
// Both may be NULL.
bool share_memory(chassis_tensor_t a, chassis_tensor_t b);

}  // namespace chassis
