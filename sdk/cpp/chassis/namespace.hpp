// The SDK's C++ names live in chassis, hidden and versioned: two plugins built with different SDKs share none.
#pragma once

#define CHASSIS_SDK_BEGIN \
  namespace chassis {     \
  inline namespace sdk_v0 __attribute__((visibility("hidden"))) {
#define CHASSIS_SDK_END \
  }                     \
  }
