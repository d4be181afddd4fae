// The time of files and records.
#pragma once

#include <chrono>

namespace chassis {

// Seconds since 1970.
inline double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace chassis
