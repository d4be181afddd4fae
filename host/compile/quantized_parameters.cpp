// Encodes and decodes in parts that begin at multiples of a block, on several threads.
#include "host/compile/quantized_parameters.hpp"

#include <algorithm>
#include <utility>

#include "host/base/error.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/threads.hpp"
#include "host/state/composite.hpp"
#include "host/state/intersect.hpp"
#include "host/state/layout.hpp"

namespace chassis {
namespace {

// A run of elements that a rank stores, consecutive both in the parameter and in the rank's shard.
struct LocalRun {
  int64_t begin = 0;  // offset of the first element, row-major in the parameter
  int64_t local = 0;  // its offset in the rank's shard
  int64_t count = 0;
};

std::vector<LocalRun> local_runs(const Parameter& p, const MeshShape& mesh, int rank) {
  std::vector<LocalRun> out;
  for (const Piece& piece : Layout(p.descriptor, mesh).pieces(rank))
    for_each_run({piece.box, row_major_view(p.descriptor.global_shape, piece.box), piece.local},
                 [&](int64_t begin, int64_t local, int64_t count) {
                   const bool joins = !out.empty() && out.back().begin + out.back().count == begin &&
                                      out.back().local + out.back().count == local;
                   if (joins)
                     out.back().count += count;
                   else
                     out.push_back({begin, local, count});
                 });
  return out;
}

constexpr int64_t kEncodedElements = 1 << 20;  // encoded at a time

int64_t encoded_piece(const QuantizedStorage& storage) {
  const int64_t block = storage.block_elements();
  return (kEncodedElements + block - 1) / block * block;
}

// One-dimensional tensors in host memory into which components of `count` elements are encoded.
std::vector<Tensor> encode_buffers(const QuantizedStorage& storage, int64_t count) {
  std::vector<Tensor> buffers;
  for (size_t i = 0; i < storage.components().size(); ++i) {
    const Component& c = storage.components()[i];
    const int64_t units = c.unit_elements == 0 ? 0 : (count + c.unit_elements - 1) / c.unit_elements;
    const int64_t sizes[] = {units * c.unit_values};
    const Dtype dtype = storage.is_staged(i) ? static_cast<Dtype>(storage.raw(i).staged_dtype) : c.dtype;
    buffers.push_back(c.unit_elements == 0 ? Tensor() : Tensor::empty(sizes, dtype));
  }
  return buffers;
}

// The parts of `runs` within [first, last) of the rank's elements, cut at block boundaries into pieces for threads.
std::vector<LocalRun> cut_runs(const std::vector<LocalRun>& runs, int64_t first, int64_t last, int64_t block) {
  const int64_t most = std::max<int64_t>(1, (1 << 16) / block) * block;
  std::vector<LocalRun> out;
  for (const LocalRun& run : runs)
    for (int64_t at = std::max(first, run.local); at < std::min(last, run.local + run.count);) {
      const int64_t count = std::min(std::min(last, run.local + run.count) - at, most);
      out.push_back({run.begin + at - run.local, at, count});
      at += count;
    }
  return out;
}

int64_t num_local(const std::vector<LocalRun>& runs) {
  return runs.empty() ? 0 : runs.back().local + runs.back().count;
}

// Calls visit(run) on several threads.
template <class Visit>
void for_each_parallel(const std::vector<LocalRun>& runs, Visit&& visit) {
  const int64_t num_elements = runs.empty() ? 0 : num_local(runs) - runs.front().local;
  const int64_t grain = std::ssize(runs) * (1 << 15) / std::max<int64_t>(1, num_elements);
  run_parallel(std::ssize(runs), std::max<int64_t>(1, grain), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) visit(runs[static_cast<size_t>(i)]);
  });
}

std::vector<void*> addresses(const std::vector<Tensor>& tensors) {
  std::vector<void*> out;
  for (const Tensor& tensor : tensors) out.push_back(tensor ? tensor.data() : nullptr);
  return out;
}

// The components of a run, in host memory.
QuantizedPart part_of(const Parameter& p, const std::vector<Tensor>& components, const LocalRun& run) {
  QuantizedPart part{p.descriptor.global_shape, {run.begin, run.count}, {}};
  for (size_t i = 0; i < components.size(); ++i)
    part.components.push_back(components[i].data_as<std::byte>() +
                              p.storage->value_offset(i, run.local) * size_bytes(components[i].dtype()));
  return part;
}

// The shape of component i before strategies that divide only storage cut it.
std::vector<int64_t> whole_component(const Parameter& p, size_t i, const MeshShape& mesh, int rank) {
  Descriptor descriptor = p.components[i].descriptor;
  if (p.storage->components()[i].unit_elements == 0) return sizes_of(descriptor.global_shape);
  descriptor.placements.resize(p.num_layout_placements);
  return sizes_of(Layout(std::move(descriptor), mesh).local_shape(rank));
}

}  // namespace

void QuantizedParameters::allocate(Parameter& p, Device home, Device device, bool pinned) const {
  const MemoryTag tag(MemoryCategory::kParameters);
  for (size_t i = 0; i < p.components.size(); ++i) allocate_component(p, i, home, device, pinned);
}

void QuantizedParameters::allocate_component(Parameter& p, size_t i, Device home, Device device, bool pinned) const {
  StoredComponent& stored = p.components[i];
  stored.descriptor = component_descriptor(p.descriptor, p.storage->components()[i]);
  stored.local_shape = whole_component(p, i, mesh_, rank_);
  const Dtype dtype = stored.descriptor.dtype;
  const std::vector<int64_t> shape = sizes_of(Layout(stored.descriptor, mesh_).local_shape(rank_));
  stored.shard = pinned ? pinned_tensor(shape, dtype) : Tensor::empty(shape, dtype, home);
  stored.shard.zero();  // padding, also on a rank without elements
  if (shape != stored.local_shape) return;
  stored.value = home == device ? stored.shard : Tensor::empty(shape, dtype, device);
}

void QuantizedParameters::release(Parameter& p) {
  for (StoredComponent& component : p.components) component = {};
}

void QuantizedParameters::start_encoding(Parameter& p) {
  MemoryTag tag(MemoryCategory::kParameters);
  for (size_t i = 0; i < p.components.size(); ++i)
    if (p.storage->is_staged(i))
      p.components[i].staged =
          Tensor::zeros(p.components[i].shard.sizes(), static_cast<Dtype>(p.storage->raw(i).staged_dtype));
}

void QuantizedParameters::encode(Parameter& p, int64_t begin, std::span<const float> values) const {
  const QuantizedStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p, mesh_, rank_);
  const auto count = static_cast<int64_t>(values.size());
  CHASSIS_CHECK(begin >= 0 && begin + count <= num_local(runs), "values of another rank");
  const std::vector<Tensor> encoded = encode_buffers(storage, count);
  for_each_parallel(cut_runs(runs, begin, begin + count, storage.block_elements()), [&](const LocalRun& run) {
    QuantizedPart part{p.descriptor.global_shape, {run.begin, run.count}, addresses(encoded)};
    for (size_t i = 0; i < encoded.size(); ++i)
      if (encoded[i])
        part.components[i] = static_cast<std::byte*>(part.components[i]) +
                             storage.value_offset(i, run.local - begin) * size_bytes(encoded[i].dtype());
    storage.encode(part, values.subspan(static_cast<size_t>(run.local - begin), static_cast<size_t>(run.count)));
  });
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (!encoded[i]) continue;
    StoredComponent& stored = p.components[i];
    const Tensor& to = storage.is_staged(i) ? stored.staged : stored.shard;
    to.flat().narrow(0, storage.value_offset(i, begin), encoded[i].num_elements()).copy_from(encoded[i]);
  }
}

// A rank whose elements are not consecutive finishes the whole parameter and keeps its own elements.
void QuantizedParameters::finish(Parameter& p, const WholeStaged& whole) const {
  const QuantizedStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p, mesh_, rank_);
  FlatRange finished{0, numel(p.descriptor.global_shape)};
  if (runs.empty()) finished = {};
  if (runs.size() == 1) finished = {runs[0].begin, runs[0].count};
  std::vector<Tensor> staged, made = encode_buffers(storage, finished.length);
  for (size_t i = 0; i < p.components.size(); ++i) {
    staged.push_back(storage.is_staged(i) ? whole(p, i) : Tensor());  // all ranks must call whole()
    if (!p.is_here) {
      p.components[i].staged.reset();
      continue;
    }
    const bool is_divided = storage.components()[i].unit_elements != 0;
    if (is_divided && !storage.is_staged(i))
      made[i].reset();
    else
      made[i] =
          Tensor::empty(is_divided ? made[i].sizes() : p.components[i].shard.sizes(), storage.components()[i].dtype);
    p.components[i].staged.reset();
  }
  if (!p.is_here) return;
  std::vector<const void*> whole_addresses;
  for (const Tensor& tensor : staged) whole_addresses.push_back(tensor ? tensor.data() : nullptr);
  storage.finish({p.descriptor.global_shape, finished, addresses(made)}, whole_addresses);
  for (size_t i = 0; i < made.size(); ++i) {
    if (!made[i] || made[i].num_elements() == 0) continue;
    const Tensor shard = p.components[i].shard.flat();
    if (storage.components()[i].unit_elements == 0) {
      shard.copy_from(made[i].flat());
      continue;
    }
    for (const LocalRun& run : runs) {
      const int64_t from = storage.value_offset(i, run.begin - finished.offset),
                    to = storage.value_offset(i, run.local), num_values = storage.num_values(i, run.count);
      shard.narrow(0, to, num_values).copy_from(made[i].narrow(0, from, num_values));
    }
  }
}

void QuantizedParameters::verify(Parameter& p, std::span<const std::string> states) const {
  if (!p.is_here) return;
  const QuantizedStorage& storage = *p.storage;
  std::vector<Tensor> here;
  for (const StoredComponent& component : p.components) here.push_back(component.shard.to(Device{}).contiguous());
  if (!states.empty()) {
    const QuantizedPart whole{p.descriptor.global_shape, {0, numel(p.descriptor.global_shape)}, addresses(here)};
    for (size_t slice = 0; slice < states.size(); ++slice)
      storage.read_state(whole, static_cast<int64_t>(slice), states[slice]);
    for (size_t i = 0; i < here.size(); ++i)
      if (storage.components()[i].unit_elements == 0) p.components[i].shard.copy_from(here[i]);
  }
  for (const LocalRun& run : local_runs(p, mesh_, rank_)) storage.verify(part_of(p, here, run));
}

void QuantizedParameters::decode(const Parameter& p, int64_t begin, std::span<float> values) const {
  const QuantizedStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p, mesh_, rank_);
  const auto count = static_cast<int64_t>(values.size());
  const int64_t block = storage.block_elements(), end = begin + count, all = num_local(runs);
  CHASSIS_CHECK(begin >= 0 && end <= all, "values of another rank");
  // Plugins decode whole blocks.
  const int64_t first = begin / block * block, last = std::min(all, (end + block - 1) / block * block);
  std::vector<float> wider;
  std::span<float> room = values;
  if (first != begin || last != end) {
    wider.resize(static_cast<size_t>(last - first));
    room = wider;
  }
  const std::vector<Tensor> shards = p.all_stored();
  for_each_parallel(cut_runs(runs, first, last, block), [&](const LocalRun& run) {
    storage.decode(part_of(p, shards, run),
                   room.subspan(static_cast<size_t>(run.local - first), static_cast<size_t>(run.count)));
  });
  if (!wider.empty()) std::copy_n(wider.begin() + (begin - first), count, values.begin());
}

std::string QuantizedParameters::state_text(const Parameter& p, int64_t slice, Dtype dtype) {
  const QuantizedStorage& storage = *p.storage;
  QuantizedPart part{p.descriptor.global_shape, {0, numel(p.descriptor.global_shape)}, {}};
  for (size_t i = 0; i < p.components.size(); ++i)
    part.components.push_back(storage.components()[i].unit_elements == 0 ? p.components[i].shard.data() : nullptr);
  return storage.write_state(part, slice, dtype);
}

// Every rank computes the staged components of the whole parameter, so that none waits for another.
void QuantizedParameters::initialize(Parameter& p, uint64_t seed) const {
  const QuantizedStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p, mesh_, rank_);
  const int64_t elements = numel(p.descriptor.global_shape), piece = encoded_piece(storage);
  std::vector<Tensor> staged(p.components.size());
  for (size_t i = 0; i < staged.size(); ++i)
    if (storage.is_staged(i)) {
      const int64_t sizes[] = {numel(p.components[i].descriptor.global_shape)};
      staged[i] = Tensor::empty(sizes, static_cast<Dtype>(storage.raw(i).staged_dtype));
    }
  const bool needs_all = std::any_of(staged.begin(), staged.end(), [](const Tensor& t) { return !!t; });
  const int64_t first = needs_all || runs.empty() ? 0 : runs.front().begin,
                last = needs_all      ? elements
                       : runs.empty() ? 0
                                      : runs.back().begin + runs.back().count;
  start_encoding(p);
  std::vector<float> values, own;
  int64_t num_encoded = 0;
  for (int64_t begin = first; begin < last; begin += piece) {
    values.assign(static_cast<size_t>(std::min(piece, last - begin)), p.init == CHASSIS_INIT_ONES ? 1.0f : 0.0f);
    fill_random(p, begin, values, seed);
    if (p.init == CHASSIS_INIT_NORMAL || p.init == CHASSIS_INIT_UNIFORM)
      for (float& value : values) value *= static_cast<float>(p.init_std);
    const auto count = static_cast<int64_t>(values.size());
    if (needs_all) {
      const std::vector<Tensor> encoded = encode_buffers(storage, count);
      storage.encode({p.descriptor.global_shape, {begin, count}, addresses(encoded)}, values);
      for (size_t i = 0; i < staged.size(); ++i)
        if (staged[i])
          staged[i].narrow(0, storage.value_offset(i, begin), encoded[i].num_elements()).copy_from(encoded[i]);
    }
    own.clear();
    for (const LocalRun& run : runs) {
      const int64_t from = std::max(begin, run.begin), to = std::min(begin + count, run.begin + run.count);
      if (from < to) own.insert(own.end(), values.begin() + (from - begin), values.begin() + (to - begin));
    }
    if (!own.empty()) encode(p, num_encoded, own);
    num_encoded += std::ssize(own);
  }
  finish(p, [&](const Parameter&, size_t i) { return staged[i]; });
}

}  // namespace chassis
