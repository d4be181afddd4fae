// Loads tensors that hold one value for each block of a parameter: components of quantized weights, and block-wise
// optimizer states. Checkpoints of runs that shard columns store them with the dims of the parameter, all others with
// the dims of files; every run can read both.
#pragma once

#include <string>

#include "host/checkpoint/reader.hpp"
#include "host/state/descriptor.hpp"

namespace chassis {

// Returns how this rank reads a component that `reader` has under `disk_name`.
LoadTensor load_component(const CheckpointReader& reader, const Descriptor& parameter, const Component& component,
                          const std::string& disk_name);

// A view of `held` with the local shape that the descriptor has on a rank.
Tensor as_described(const Tensor& held, const Descriptor& descriptor, const MeshShape& mesh, int rank);

}  // namespace chassis
