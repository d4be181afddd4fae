// Plans a save: boxes, parts and their order.
#include "host/checkpoint/save_plan.hpp"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/base/units.hpp"
#include "host/state/composite.hpp"
#include "host/state/layout.hpp"
#include "host/state/owned_boxes.hpp"

namespace chassis {
namespace {

// The tensors that are stored, with components in place of composites.
std::vector<SaveTensor> stored_tensors(std::vector<SaveTensor> tensors) {
  std::vector<SaveTensor> stored;
  for (SaveTensor& tensor : tensors) {
    if (tensor.disk_name.empty()) tensor.disk_name = tensor.descriptor.fqn;
    if (tensor.descriptor.components.empty()) {
      stored.push_back(std::move(tensor));
      continue;
    }
    CHASSIS_CHECK(tensor.parts.empty(), "'" + tensor.descriptor.fqn + "': components are stored under one name");
    for (const Component& component : tensor.descriptor.components) {
      stored.push_back(
          {component_descriptor(tensor.descriptor, component), tensor.disk_name + component.suffix, component.dtype});
    }
  }
  for (SaveTensor& tensor : stored)
    if (tensor.parts.empty())
      tensor.parts.push_back(StoredPart::whole(tensor.disk_name, tensor.descriptor.global_shape));
  return stored;
}

// Checks that the parts of each name form one whole tensor on disk. Returns the number of names.
uint64_t check_names(const std::vector<SaveTensor>& tensors) {
  struct Known {
    const SaveTensor* first;
    Shape shape;
    int64_t num_elements;
  };
  std::unordered_map<std::string_view, Known> by_name;
  for (const SaveTensor& tensor : tensors) {
    for (const StoredPart& part : tensor.parts) {
      const auto [it, is_new] = by_name.try_emplace(part.disk_name, Known{&tensor, part.disk_shape, 0});
      Known& known = it->second;
      known.num_elements += numel(part.box);
      if (is_new) continue;
      if (known.shape == part.disk_shape && known.first->disk_dtype == tensor.disk_dtype &&
          known.num_elements <= numel(known.shape) && numel(part.box) < numel(known.shape))
        continue;
      throw plugin_error("two tensors are called '" + part.disk_name + "' on disk: '" + known.first->descriptor.fqn +
                         "' and '" + tensor.descriptor.fqn + "'");
    }
  }
  for (const auto& [name, known] : by_name)
    if (known.num_elements != numel(known.shape))
      throw plugin_error("'" + std::string(name) + "' on disk is " + text(known.shape) + ", " +
                         std::to_string(numel(known.shape)) + " elements, of which " +
                         std::to_string(known.num_elements) + " are in '" + known.first->descriptor.fqn +
                         "' and others");
  return by_name.size();
}

// Visits the boxes of a plan in order of declaration, and the parts of each that ranks write. `add_part` receives what
// `add_box` returned.
template <typename AddBox, typename AddPart>
void for_each_part(const SavePlan& plan, bool whole_tensors, bool of_all_ranks, const AddBox& add_box,
                   const AddPart& add_part) {
  // A tensor without elements has no owner, but it is stored by name.
  const auto is_one_box = [&](const StoredPart& part) { return whole_tensors || numel(part.disk_shape) == 0; };
  const int rank = plan.options.rank;
  OwnedBoxes boxes_of_all(plan.mesh);
  std::unordered_map<std::string_view, uint32_t> whole;
  for (uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const SaveTensor& tensor = plan.tensors[i];
    for (const StoredPart& part : tensor.parts)
      if (is_one_box(part) && (of_all_ranks || whole_tensors || rank == 0) && !whole.contains(part.disk_name))
        whole[part.disk_name] = add_box(tensor, part, Box::whole(part.disk_shape), 0);
    std::vector<OwnedBox> own;
    if (!of_all_ranks)
      for (const Box& box : Layout(tensor.descriptor, plan.mesh).owned_boxes(rank)) own.push_back({rank, box});
    for (const OwnedBox& owned : of_all_ranks ? boxes_of_all.of(tensor.descriptor) : std::span<const OwnedBox>(own)) {
      for (uint32_t p = 0; p < tensor.parts.size(); ++p) {
        const StoredPart& part = tensor.parts[p];
        const Box region = intersection(owned.box, part.box);
        if (region.empty()) continue;
        add_part(is_one_box(part) ? whole.at(part.disk_name) : add_box(tensor, part, part.on_disk(region), owned.rank),
                 region, owned.rank, i, p);
      }
    }
  }
}

void add_boxes(SavePlan& plan, bool whole_tensors) {
  const int rank = plan.options.rank;
  // If files are shared, every rank lays out the boxes of all ranks.
  const bool of_all_ranks = rank == kAllRanks || (!plan.own_files && !whole_tensors);
  const auto add_box = [&](const SaveTensor& tensor, const StoredPart& part, const Box& box, int writer) {
    plan.boxes.push_back({part.disk_name, tensor.disk_dtype, part.disk_shape, box, writer});
    return static_cast<uint32_t>(plan.boxes.size() - 1);
  };
  const auto add_part = [&](uint32_t box, const Box& region, int writer, uint32_t tensor, uint32_t part) {
    if (rank == kAllRanks || writer == rank) plan.parts.push_back({box, region, writer, tensor, part});
  };
  for_each_part(plan, whole_tensors, of_all_ranks, add_box, add_part);
  for (const SaveTensor& tensor : plan.tensors)
    for (const StoredPart& part : tensor.parts)
      plan.tensor_bytes += static_cast<uint64_t>(numel(part.box) * size_bytes(tensor.disk_dtype));
}

// Boxes by file and offset, parts by box and offset: every rank writes its files from front to back.
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
    const auto begin = [&](const SavePart& part) {
      return plan.tensors[part.tensor].parts[part.part].on_disk(part.region).begin;
    };
    const Shape first = begin(a), second = begin(b);
    return std::lexicographical_compare(first.begin(), first.end(), second.begin(), second.end());
  });
}

}  // namespace

Piece SavePart::place(const SavePlan& plan) const {
  const Piece whole = plan.tensors[tensor].parts[part].piece(plan.boxes[box].box);
  return {region, whole.view(region), true};
}

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
    std::vector<Descriptor> declared;
    declared.reserve(tensors.size());
    for (const SaveTensor& tensor : tensors) declared.push_back(tensor.descriptor);
    prove_cover(declared, mesh, options.prover);
  }
  plan.tensors = stored_tensors(std::move(tensors));
  plan.num_disk_tensors = check_names(plan.tensors);
  plan.own_files = options.rank != kAllRanks && format.divides_by_rank(options.metadata);
  add_boxes(plan, format.whole_tensors());

  // A rank without boxes has no files; only a checkpoint without tensors has an empty one.
  if (!plan.own_files || !plan.boxes.empty() || (plan.tensors.empty() && options.rank == 0))
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

void SavePlan::for_each_box(const std::function<void(const DiskBox&)>& visit) const {
  if (!own_files) {
    for (const DiskBox& box : boxes) visit(box);
    return;
  }
  for_each_part(
      *this, false, true,
      [&](const SaveTensor& tensor, const StoredPart& part, const Box& box, int rank) {
        visit({part.disk_name, tensor.disk_dtype, part.disk_shape, box, rank});
        return 0u;
      },
      [](uint32_t, const Box&, int, uint32_t, uint32_t) {});
}

// Boxes and parts follow from the tensors. Only the layout of a shared file is the format's answer.
uint64_t SavePlan::fingerprint() const {
  uint64_t hash = 0;
  const auto add = [&](std::string_view bytes) { hash = hash64(bytes, hash); };
  const auto add_number = [&](uint64_t n) { add({reinterpret_cast<const char*>(&n), sizeof n}); };
  const auto add_shape = [&](const Shape& shape) {
    for (const int64_t size : shape) add_number(static_cast<uint64_t>(size));
  };
  add(mesh.text());
  add(format);
  add_number(own_files);
  add_number(options.max_file_bytes);
  for (const auto& [key, value] : options.metadata) add(key), add(value);
  for (const SaveTensor& tensor : tensors) {
    add(tensor.descriptor.fqn);
    add(Layout(tensor.descriptor, mesh).key());
    add_number(static_cast<uint64_t>(tensor.disk_dtype));
    for (const StoredPart& part : tensor.parts) {
      add(part.disk_name);
      for (const Shape& shape : {part.disk_shape, part.box.begin, part.box.end, part.disk_begin}) add_shape(shape);
      for (const int dim : part.dims) add_number(static_cast<uint64_t>(dim));
      add_number(part.is_reshaped);
    }
  }
  if (own_files) return hash;
  for (const auto& file : layout.files) {
    add(file.path);
    add(file.header);
    add_number(file.num_bytes);
  }
  for (const DiskPlace& place : layout.places) {
    add_number(place.file);
    add_number(place.offset);
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
  const std::string files = own_files
                                ? "files of each rank"
                                : std::to_string(layout.files.size()) + (layout.files.size() == 1 ? " file" : " files");
  return std::to_string(num_disk_tensors) + " tensors, " + bytes_text(tensor_bytes) + " in " + files + " of format " +
         format;
}

}  // namespace chassis
