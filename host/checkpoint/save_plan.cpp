#include "host/checkpoint/save_plan.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
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

void add_boxes(SavePlan& plan, uint32_t index, const Layout& layout, bool whole_tensors) {
  const SaveTensor& tensor = plan.tensors[index];
  const Shape& shape = tensor.descriptor.global_shape;
  const auto add_box = [&](const Box& box, int rank) {
    plan.boxes.push_back({tensor.disk_name, tensor.disk_dtype, shape, box, rank});
    plan.tensor_of.push_back(index);
    plan.tensor_bytes += plan.boxes.back().num_bytes();
  };
  // A tensor without elements has no owner, yet its name is to be there.
  const bool is_one_box = whole_tensors || numel(shape) == 0;
  if (is_one_box) add_box(Box::whole(shape), 0);
  for (int rank = 0; rank < plan.mesh.world_size(); ++rank) {
    for (const Box& region : layout.owned_boxes(rank)) {
      if (!is_one_box) add_box(region, rank);
      plan.parts.push_back({static_cast<uint32_t>(plan.boxes.size() - 1), region, rank});
    }
  }
}

// Boxes by file and offset, parts by box and offset: every rank goes through its files from front to back.
void sort_for_writing(SavePlan& plan) {
  plan.order.resize(plan.boxes.size());
  std::iota(plan.order.begin(), plan.order.end(), 0u);
  std::stable_sort(plan.order.begin(), plan.order.end(), [&](uint32_t a, uint32_t b) {
    const DiskPlace &x = plan.layout.places[a], &y = plan.layout.places[b];
    return x.file != y.file ? x.file < y.file : x.offset < y.offset;
  });
  std::vector<uint32_t> position(plan.boxes.size());
  for (uint32_t i = 0; i < plan.order.size(); ++i) position[plan.order[i]] = i;
  std::sort(plan.parts.begin(), plan.parts.end(), [&](const SavePart& a, const SavePart& b) {
    if (a.box != b.box) return position[a.box] < position[b.box];
    return std::lexicographical_compare(a.region.begin.begin(), a.region.begin.end(), b.region.begin.begin(),
                                        b.region.begin.end());
  });
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
  plan.options = options;
  plan.checksum = format.checksum();
  {
    std::vector<Layout> declared;
    declared.reserve(tensors.size());
    for (const SaveTensor& tensor : tensors) declared.emplace_back(tensor.descriptor, mesh);
    prove_cover(declared);
  }
  plan.tensors = stored_tensors(std::move(tensors));
  check_names(plan.tensors);
  for (uint32_t i = 0; i < plan.tensors.size(); ++i)
    add_boxes(plan, i, Layout(plan.tensors[i].descriptor, mesh), format.whole_tensors());

  plan.layout = format.layout(plan.boxes, options.metadata, mesh.world_size(), options.max_file_bytes);
  sort_for_writing(plan);
  for (const auto& file : plan.layout.files) plan.file_bytes += file.num_bytes;
  return plan;
}

uint64_t SavePlan::bytes_of_rank(int rank) const {
  uint64_t sum = 0;
  for (const SavePart& part : parts)
    if (part.rank == rank) sum += static_cast<uint64_t>(numel(part.region) * size_bytes(boxes[part.box].dtype));
  return sum;
}

uint64_t SavePlan::fingerprint() const {
  uint64_t hash = 0;
  const auto add = [&](std::string_view bytes) { hash = hash64(bytes, hash); };
  const auto add_number = [&](uint64_t n) { add({reinterpret_cast<const char*>(&n), sizeof n}); };
  const auto add_shape = [&](const Shape& shape) {
    for (const int64_t size : shape) add_number(static_cast<uint64_t>(size));
  };
  add(mesh.text());
  add(format);
  for (const auto& file : layout.files) {
    add(file.path);
    add(file.header);
    add_number(file.num_bytes);
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    add(boxes[i].name);
    add_number(static_cast<uint64_t>(boxes[i].dtype));
    add_shape(boxes[i].global_shape);
    add_number(layout.places[i].file);
    add_number(layout.places[i].offset);
  }
  for (const SavePart& part : parts) {
    add_number(part.box);
    add_shape(part.region.begin);
    add_shape(part.region.end);
    add_number(static_cast<uint64_t>(part.rank));
  }
  for (const auto& [path, bytes] : layout.text_files) add(path), add(bytes);
  return hash;
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
