// Compares the dims on disk with those of the parameter.
#include "host/save/component_load.hpp"

#include "host/state/composite.hpp"
#include "host/state/layout.hpp"

namespace chassis {

std::vector<std::string> slice_names(const Parameter& p, std::span<const StoredPart> parts) {
  const Shape& shape = p.descriptor.global_shape;
  const auto num_slices = static_cast<size_t>(p.storage->num_slices());
  if (parts.size() != num_slices) return {};
  if (!p.storage->is_sliced())
    return parts[0] == StoredPart::whole(parts[0].disk_name, shape) ? std::vector<std::string>{parts[0].disk_name}
                                                                    : std::vector<std::string>();
  StoredPart expected = StoredPart::whole("", p.storage->slice_shape(shape));
  expected.box = Box::whole(shape);
  for (int& dim : expected.dims) ++dim;
  std::vector<std::string> names(num_slices);
  for (const StoredPart& part : parts) {
    expected.disk_name = part.disk_name;
    expected.box.begin[0] = part.box.begin[0];
    expected.box.end[0] = part.box.begin[0] + 1;
    if (part != expected) return {};
    names[static_cast<size_t>(part.box.begin[0])] = part.disk_name;
  }
  return names;
}

// In every form, dim 0 of a component is a multiple of the number of slices.
std::vector<StoredPart> slice_parts(const Parameter& p, size_t i, const Descriptor& stored,
                                    std::span<const std::string> names) {
  Descriptor slice = Descriptor::plain(p.name, p.descriptor.dtype, p.storage->slice_shape(p.descriptor.global_shape));
  slice.granularity = p.descriptor.granularity;
  slice.components = p.descriptor.components;
  const Component component = p.storage->slice_component(i);
  const Shape on_disk = component_descriptor(slice, component).global_shape;
  const int64_t rows = stored.global_shape[0] / p.storage->num_slices();
  std::vector<StoredPart> parts;
  Box box = Box::whole(stored.global_shape);
  for (const std::string& name : names) {
    box.end[0] = box.begin[0] + rows;
    parts.push_back(StoredPart::reshaped(name + component.suffix, on_disk, box));
    box.begin[0] = box.end[0];
  }
  return parts;
}

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
