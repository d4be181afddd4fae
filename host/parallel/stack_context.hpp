// The facts of a run that strategies get in addition to the program and its parameters.
#pragma once

#include <cstdint>

#include "host/graph/dim_sizes.hpp"
#include "host/service/tensor.hpp"
#include "host/state/dtype.hpp"
#include "host/state/mesh_shape.hpp"

namespace chassis {

struct StackContext {
  MeshShape mesh;
  int rank = 0;
  Dtype reduce_dtype = Dtype::f32;
  Device device;
  bool trains = true;
  int64_t num_microbatches = 1;
  DimSizes sizes = {1, 1};  // of the largest micro-batch
};

}  // namespace chassis
