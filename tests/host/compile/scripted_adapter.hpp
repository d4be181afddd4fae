// The functions of a test that the plugin "scripted" calls; their address is its option "script".
#pragma once

#include <functional>

#include "chassis/kind/adapter.h"

namespace chassis::test {

// Absent functions do nothing.
struct AdapterScript {
  std::function<chassis_status_t*(const chassis_adapter_parameter_t&, uint32_t* trained)> parameter = {};
  std::function<chassis_status_t*(const chassis_adapter_op_t&, const chassis_adapter_builder_t&)> extend = {};
};

}  // namespace chassis::test
