// The fastest matrix product and the fastest copy of this machine's processors, as measured now.
#pragma once

#include "host/state/dtype.hpp"

namespace chassis {

struct MachineLimits {
  double product_flops = 0.0;  // per second, of two factors of the dtype
  double copy_bytes = 0.0;     // per second, read and written
};

// [step] Computes for about half a second each, on the host's threads (set_threads).
MachineLimits measure_limits(Dtype dtype);

}  // namespace chassis
