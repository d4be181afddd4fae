// chassis.model/1 in the terms of chassis.model/2: all that the host does for plugins that were made before 0.3.
#pragma once

#include "chassis/kind/model_1.h"
#include "host/plugin/instance.hpp"
#include "host/program/disk_mapping.hpp"

namespace chassis {

// Records through a builder of the first version; its fields are [B, T] i32.
chassis_status_t* record_first(const chassis_model_t& model, chassis_instance_t* self,
                               const chassis_builder_2_t& builder);
// Every parameter is a tensor of its own shape under its disk name. What the files call otherwise the plugin is asked
// when it is met, so it must outlive the mapping.
DiskMapping map_first(const chassis_model_t& model, Instance& instance, const ParameterTable& parameters);

}  // namespace chassis
