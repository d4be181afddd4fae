// Who holds which handle: every handle that a plugin instance was given or made stands here until it releases it or
// hands it to the host. Process-wide, since a handle does not say where it came from.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "chassis/tensor.h"

namespace chassis::ledger {

// The number of handles an instance holds.
using Account = std::shared_ptr<std::atomic<int64_t>>;

void enter(chassis_tensor_t handle, const Account& account);
// True if an instance holds it. Reads nothing behind the handle.
bool holds(chassis_tensor_t handle) noexcept;
// True if the handle stood in the ledger; it does no more.
bool leave(chassis_tensor_t handle) noexcept;

}  // namespace chassis::ledger
