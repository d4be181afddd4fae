// Adapts chassis.model/1 to chassis.model/2, for plugins that were made before ABI 0.3.
#pragma once

#include "chassis/kind/model_1.h"
#include "host/plugin/instance.hpp"
#include "host/program/disk_mapping.hpp"

namespace chassis {

// Records through a builder of version 1, whose fields are [B, T] i32.
chassis_status_t* record_v1(const chassis_model_t& model, chassis_instance_t* self, const chassis_builder_2_t& builder);
// Every parameter is one tensor of its own shape under its disk name. The mapping asks the plugin about every other
// name that it meets in a file, so the plugin must outlive the mapping.
DiskMapping map_v1(const chassis_model_t& model, Instance& instance, const ParameterTable& parameters);

}  // namespace chassis
