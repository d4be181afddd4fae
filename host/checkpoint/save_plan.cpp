#include "host/checkpoint/save_plan.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "host/base/error.hpp"
#include "host/base/units.hpp"
#include "host/state/composite.hpp"
#include "host/state/cover.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

// What is stored, one entry for every tensor on disk.
std::vector<SaveTensor> stored_tensors(std::vector<SaveTensor> tensors) {
  std::vector<SaveTensor> stored;
  for (SaveTensor& tensor : tensors) {
    if (tensor.disk_name.empty()) tensor.disk_name = tensor.descriptor.fqn;
    if (!tensor.descriptor.tie.empty()) continue;
    if (tensor.descriptor.components.empty()) {
      stored.push_back(std::move(tensor));
      continue;
    }
    for (const Component& component : tensor.descriptor.components) {
      stored.push_back(
          {component_descriptor(tensor.descriptor, component), tensor.disk_name + component.suffix, component.dtype});
    }
  }
  return stored;
}

void check_names(const std::vector<SaveTensor>& tensors) {
  std::unordered_map<std::string_view, const SaveTensor*> by_name;
  for (const SaveTensor& tensor : tensors) {
    const auto [it, is_new] = by_name.emplace(tensor.disk_name, &tensor);
    if (!is_new) {
      throw plugin_error("two tensors are called '" + tensor.disk_name + "' on disk: '" + it->second->descriptor.fqn +
                         "' and '" + tensor.descriptor.fqn + "'");
    }
  }
}

void add_boxes(SavePlan& plan, uint32_t index, const Layout& layout) {
  const SaveTensor& tensor = plan.tensors[index];
  const Shape& shape = tensor.descriptor.global_shape;
  const auto add = [&](const Box& box, int rank) {
    plan.boxes.push_back({tensor.disk_name, tensor.disk_dtype, shape, box, rank});
    plan.tensor_of.push_back(index);
    plan.tensor_bytes += plan.boxes.back().num_bytes();
  };
  if (numel(shape) == 0) return add(Box::whole(shape), 0);  // nobody owns an element, yet the name is to be there
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
    for (const Box& box : layout.owned_boxes(rank)) add(box, rank);
  }
}

}  // namespace

SaveTensor SaveTensor::plain(Descriptor descriptor) {
  SaveTensor tensor{std::move(descriptor), "", Dtype::f32};
  tensor.disk_name = tensor.descriptor.fqn;
  tensor.disk_dtype = tensor.descriptor.dtype;
  return tensor;
}

SavePlan plan_save(std::vector<SaveTensor> tensors, const MeshShape& mesh, const FormatPlugin& format,
                   const SavePlanOptions& options) {
  SavePlan plan;
  plan.mesh = mesh;
  plan.format = format.name();
  {
    std::vector<Layout> declared;
    declared.reserve(tensors.size());
    for (const SaveTensor& tensor : tensors) declared.emplace_back(tensor.descriptor, mesh);
    prove_cover(declared);
  }
  plan.tensors = stored_tensors(std::move(tensors));
  check_names(plan.tensors);
  for (uint32_t i = 0; i < plan.tensors.size(); ++i) add_boxes(plan, i, Layout(plan.tensors[i].descriptor, mesh));

  plan.layout = format.layout(plan.boxes, options.metadata, mesh.world_size(), options.max_file_bytes);
  plan.order.resize(plan.boxes.size());
  std::iota(plan.order.begin(), plan.order.end(), 0u);
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](uint32_t a, uint32_t b) {
    const DiskPlace &x = plan.layout.places[a], &y = plan.layout.places[b];
    return x.file != y.file ? x.file < y.file : x.offset < y.offset;
  });
  for (const auto& file : plan.layout.files) plan.file_bytes += file.num_bytes;
  return plan;
}

uint64_t SavePlan::bytes_of_rank(int rank) const {
  uint64_t sum = 0;
  for (const DiskBox& box : boxes) sum += box.rank == rank ? box.num_bytes() : 0;
  return sum;
}

uint64_t SavePlan::largest_header() const {
  uint64_t largest = 0;
  for (const auto& file : layout.files) largest = std::max<uint64_t>(largest, file.header.size());
  return largest;
}

std::string SavePlan::text() const {
  return std::to_string(tensors.size()) + " tensors, " + bytes_text(tensor_bytes) + " in " +
         std::to_string(layout.files.size()) + (layout.files.size() == 1 ? " file" : " files") + " of format " + format;
}

}  // namespace chassis
