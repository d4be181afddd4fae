// From a batch of plain arrays to tensors on the device.
#pragma once

#include "host/data/batch.hpp"
#include "host/program/block_run.hpp"

namespace chassis {

Fields to_fields(const Batch& batch, Device device);

}  // namespace chassis
