// Records which plugin instance holds which handle. A handle is listed from the time when an instance receives or makes
// it until the instance releases it or hands it to the host. There is one ledger per process, since a handle does not
// name its instance.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "chassis/tensor.h"

namespace chassis::ledger {

// The number of handles that an instance holds.
using Account = std::shared_ptr<std::atomic<int64_t>>;

void add(chassis_tensor_t handle, const Account& account);
// True if an instance holds it. Does not dereference the handle.
bool holds(chassis_tensor_t handle) noexcept;
// True if the handle was listed.
bool remove(chassis_tensor_t handle) noexcept;

}  // namespace chassis::ledger
