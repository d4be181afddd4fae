// The SDK's C++ names are in namespace chassis, hidden and versioned: plugins built with different SDKs share none.
#pragma once

#define CHASSIS_SDK_BEGIN \
  namespace chassis {     \
  inline namespace sdk_v0 __attribute__((visibility("hidden"))) {
#define CHASSIS_SDK_END \
  }                     \
  }
