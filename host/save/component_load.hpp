// Loads tensors that hold one value for each block of a parameter: components of quantized weights, and block-wise
// optimizer states. Checkpoints of runs that shard columns store them with the dims of the parameter, all others with
// the dims of files; every run can read both.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "host/checkpoint/reader.hpp"
#include "host/compile/parameter.hpp"
#include "host/state/descriptor.hpp"

namespace chassis {

// The tensors on disk that hold the slices of a parameter, each whole and in its order; `parts` says where the
// parameter is. A parameter without slices is its only one. Empty if files hold it otherwise.
std::vector<std::string> slice_names(const Parameter& p, std::span<const StoredPart> parts);

// The places of component i, which has the descriptor `stored`, in files that hold the slices under these names.
std::vector<StoredPart> slice_parts(const Parameter& p, size_t i, const Descriptor& stored,
                                    std::span<const std::string> names);

// Returns how this rank reads a component that `reader` has under `disk_name`.
LoadTensor load_component(const CheckpointReader& reader, const Descriptor& parameter, const Component& component,
                          const std::string& disk_name);

// A view of `held` with the local shape that the descriptor has on a rank.
Tensor as_described(const Tensor& held, const Descriptor& descriptor, const MeshShape& mesh, int rank);

}  // namespace chassis
