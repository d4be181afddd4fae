// Checks of tensors that plugins return, made at each return so that an error names the right plugin. Only metadata is
// read, which takes a few nanoseconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/tensor.h"
#include "host/service/tensor.hpp"

namespace chassis {

// Handles that a call lends to a plugin; `what` names them in errors, such as "input".
struct LentHandles {
  const char* what;
  std::span<const chassis_tensor_t> handles;
};
// Why the plugin may not return this handle, such as "the handle of input 1, which is only lent"; empty if it may. Does
// not dereference the handle. `tracked`: the plugin gets handles only from the host's tables, so that a handle that is
// not in the ledger is not valid.
std::string lent_or_unknown_handle(chassis_tensor_t handle, bool tracked, std::span<const LentHandles> lent);

struct ExpectedTensor {
  Dtype dtype;
  Device device;
  std::span<const int64_t> sizes;
};

// True for a contiguous tensor of this dtype, device and shape.
bool matches_expected(chassis_tensor_t tensor, const ExpectedTensor& expected);
// How it differs: "as bf16[2, 3] on cpu, expected f32[2, 4] on cpu".
std::string mismatch_text(chassis_tensor_t tensor, const ExpectedTensor& expected);
// Either may be NULL.
bool share_memory(chassis_tensor_t a, chassis_tensor_t b);

}  // namespace chassis
