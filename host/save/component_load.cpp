// Compares the dims on disk with those of the parameter.
#include "host/save/component_load.hpp"

#include "host/state/composite.hpp"
#include "host/state/layout.hpp"

namespace chassis {

LoadTensor load_component(const CheckpointReader& reader, const Descriptor& parameter, const Component& component,
                          const std::string& disk_name) {
  Descriptor with_dims = component_descriptor(parameter, component, true);
  const DiskTensor* const found = reader.find(disk_name);
  if (found != nullptr && found->global_shape == with_dims.global_shape) return {std::move(with_dims), disk_name};
  Descriptor undivided = parameter;
  undivided.placements.clear();
  const Shape in_files = component_descriptor(undivided, component).global_shape;
  Descriptor stored = component_descriptor(parameter, component);
  std::vector<StoredPart> parts = {StoredPart::reshaped(disk_name, in_files, Box::whole(stored.global_shape))};
  return {std::move(stored), disk_name, std::move(parts)};
}

Tensor as_described(const Tensor& held, const Descriptor& descriptor, const MeshShape& mesh, int rank) {
  const Shape shape = Layout(descriptor, mesh).local_shape(rank);
  return held.view(std::vector<int64_t>(shape.begin(), shape.end()));
}

}  // namespace chassis
