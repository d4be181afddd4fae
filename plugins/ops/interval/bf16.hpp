// bf16 is the upper half of an fp32.
#pragma once

#include <cstdint>

#include "chassis/bf16.hpp"

namespace interval {

using Bf16 = uint16_t;
using chassis::from_bf16, chassis::to_bf16;

}  // namespace interval
