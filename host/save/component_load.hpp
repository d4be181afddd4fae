// Loads tensors that hold one value for each block of a parameter: components of weights in few bits, and states of
// optimizers in blocks. Checkpoints of runs that cut columns have the dims of the parameter, all others those of files;
// both are read by both.
#pragma once

#include <string>

#include "host/checkpoint/reader.hpp"
#include "host/state/descriptor.hpp"

namespace chassis {

// How this rank reads a component from what `reader` has under a name.
LoadTensor load_component(const CheckpointReader& reader, const Descriptor& parameter, const Component& component,
                          const std::string& disk_name);

// The same elements with the dims that a descriptor gives to them on a rank.
Tensor as_described(const Tensor& held, const Descriptor& descriptor, const MeshShape& mesh, int rank);

}  // namespace chassis
