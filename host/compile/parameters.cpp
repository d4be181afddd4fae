// Shards are allocated and filled piece by piece, as their descriptors divide them.
#include "host/compile/parameters.hpp"

#include <algorithm>
#include <numeric>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/rng.hpp"
#include "host/service/threads.hpp"
#include "host/state/composite.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

// Refuses a division that the storage does not allow, or that cuts blocks: a block's codes and scales lie on one rank.
void refuse_cut_blocks(const Descriptor& descriptor, const QuantStorage& storage, const Shape& local_shape,
                       const ProgramLayout& layout) {
  if (descriptor.placements.empty()) return;
  const std::string& axis = descriptor.placements.front().axes.front();
  const SourcePosition& where = std::ranges::find(layout.axes, axis, &LayoutAxis::name)->where;
  const std::string parameter = "parameter '" + descriptor.fqn + "' " + text(descriptor.global_shape) +
                                " is stored as " + storage.scheme() + ", ";
  const std::string undivided = "leave it out of the quantization, or set " + mesh_key(axis) + " = 1";
  if (!storage.is_divisible())
    throw Error(ExitCode::kConfig, where,
                parameter + "whose products need the whole of it, and axis '" + axis + "' divides it")
        .hint(undivided);
  const int64_t block = storage.block_elements();
  const int dim = dim_cut_within_blocks(descriptor, local_shape, block);
  if (dim < 0) return;
  const int64_t part = local_shape[dim] * row_major_strides(descriptor.global_shape)[dim];
  throw Error(ExitCode::kConfig, where,
              parameter + "in blocks of " + std::to_string(block) + " elements, and axis '" + axis +
                  "' would cut dim " + std::to_string(dim) + " within them, into parts of " +
                  std::to_string(local_shape[dim]))
      .hint("choose blocks of " + std::to_string(std::gcd(part, block)) +
            " elements or fewer in [quant] if its plugin lets you, " + undivided);
}

Descriptor describe(const Program& program, const ProgramLayout& layout, const Slot& slot, std::string name) {
  Descriptor descriptor = Descriptor::plain(std::move(name), Dtype::f32, Shape(program.global_shape(slot)));
  for (size_t a = 0; a < std::min(layout.axes.size(), slot.sharding.size()); ++a) {
    if (slot.sharding[a].kind != Sharding::Kind::kShard) continue;
    for (size_t dim = 0; dim < slot.axes.size(); ++dim) {
      const auto& axis = slot.axes[dim];
      const auto divided = std::find(axis.begin(), axis.end(), slot.sharding[a].dim);
      if (divided == axis.end()) continue;
      CHASSIS_CHECK(divided == axis.begin(), "only the outermost dim of a parameter's axis can be divided");
      Placement placement = Placement::dim_chunk({layout.axes[a].name}, static_cast<int>(dim));
      placement.unit = program.dim_product({divided + 1, axis.end()});  // a head's rows stay together
      placement.pad_even = true;
      descriptor.placements.push_back(std::move(placement));
    }
  }
  if (slot.components == nullptr) return descriptor;
  refuse_cut_blocks(descriptor, *slot.components, Shape(layout.local_shape(program, slot)), layout);
  descriptor.components = slot.components->components();
  descriptor.granularity = Granularity::block_of(slot.components->block_elements());
  return descriptor;
}

// Values [index, index + values.size()) of a parameter with a normal or uniform init, before they are scaled.
void fill_random(const Parameter& p, int64_t index, std::span<float> values, uint64_t seed) {
  if (p.init == CHASSIS_INIT_NORMAL) random_normal(seed, p.name, static_cast<uint64_t>(index), values);
  if (p.init != CHASSIS_INIT_UNIFORM) return;
  random_uniform(seed, p.name, static_cast<uint64_t>(index), values);
  for (float& value : values) value = 2.0f * value - 1.0f;
}

// Writes elements [index, index + count) of the logical tensor, row-major, to consecutive elements of `target` from
// `begin` on. Works in pieces of fixed size, so that a device tensor needs little host memory.
void initialize_random(const Parameter& p, const Tensor& target, int64_t begin, int64_t index, int64_t count,
                       uint64_t seed) {
  constexpr int64_t kPiece = 4 << 20;
  std::vector<float> piece(static_cast<size_t>(std::min(kPiece, count)));
  for (int64_t done = 0; done < count; done += kPiece) {
    const int64_t length = std::min(kPiece, count - done);
    const std::span<float> values(piece.data(), static_cast<size_t>(length));
    fill_random(p, index + done, values, seed);
    const int64_t sizes[] = {length};
    const Tensor slice = target.narrow(0, begin + done, length);
    slice.copy_from(Tensor::borrow(piece.data(), sizes, Dtype::f32));
    slice.multiply(p.init_std);
  }
}

// Throws if the partial sums differ: a tensor has one gradient, of which each rank computes either a part or the whole.
void expect_equal_partial_sums(const Slot& tied, const Parameter* parameter) {
  if (parameter == nullptr || tied.partial_over == parameter->partial_over) return;
  const std::string& axis = (tied.partial_over.empty() ? parameter->partial_over : tied.partial_over).front();
  throw config_error("parameter '" + parameter->name + "' is tied to '" + tied.name + "': along axis '" + axis +
                     "' each rank would have a part of its gradient from one of them, and the whole from the other")
      .hint("divide the dim that both share, usually the vocabulary");
}

// Throws if the parts differ: units that share a tensor read the same part of it.
void expect_equal_parts(const Program& program, const ProgramLayout& layout, const Slot& tied,
                        const Parameter* parameter) {
  if (parameter == nullptr || layout.local_shape(program, tied) == parameter->local_shape) return;
  throw config_error("parameter '" + parameter->name + "' is tied to '" + tied.name +
                     "': one of them is divided, and a plugin's own op needs the whole of the other")
      .hint(
          "if that op computes a part of its output from a part of the parameter, let the model declare its "
          "mixed_dims");
}

std::vector<int64_t> sizes_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

}  // namespace

ParameterTable::ParameterTable(const Program& program, const ProgramLayout& layout) {
  std::vector<MeshAxis> axes;
  for (const LayoutAxis& axis : layout.axes) axes.push_back({axis.name, static_cast<int>(axis.size)});
  mesh_ = MeshShape(std::move(axes));
  std::vector<std::pair<size_t, size_t>> ties;
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i) {
      auto& unit = units_.emplace_back();
      for (const Slot& slot : program.blocks[chain.blocks[i]].slots) {
        if (!slot.tied_to.empty()) {
          ties.emplace_back(units_.size() - 1, unit.size());
          unit.push_back(nullptr);
          continue;
        }
        auto parameter = std::make_unique<Parameter>();
        parameter->name = chain.parameter_name(i, slot);
        parameter->descriptor = describe(program, layout, slot, parameter->name);
        parameter->granularity = parameter->descriptor.granularity;
        parameter->num_layout_placements = parameter->descriptor.placements.size();
        parameter->local_shape = layout.local_shape(program, slot);
        parameter->role = slot.role;
        parameter->trainable = !slot.frozen;
        parameter->partial_over = slot.partial_over;
        parameter->added = slot.added;
        parameter->lr_scale = slot.lr_scale;
        parameter->init = slot.init;
        parameter->init_std = slot.init_std;
        parameter->storage = slot.components;
        if (slot.components) parameter->components.resize(slot.components->components().size());
        unit.push_back(parameter.get());
        parameters_.push_back(std::move(parameter));
      }
    }
  size_t unit = 0;
  for (const Chain& chain : program.chains)
    for (uint32_t type : chain.blocks) {
      const auto& slots = program.blocks[type].slots;
      for (size_t s = 0; s < slots.size(); ++s)
        if (!slots[s].tied_to.empty()) {
          units_[unit][s] = find(slots[s].tied_to);
          expect_equal_partial_sums(slots[s], units_[unit][s]);
          expect_equal_parts(program, layout, slots[s], units_[unit][s]);
        }
      ++unit;
    }
}

Parameter* ParameterTable::find(std::string_view name) const {
  for (const auto& parameter : parameters_)
    if (parameter->name == name) return parameter.get();
  return nullptr;
}

std::vector<Tensor> Parameter::all_stored() const {
  if (!is_quantized()) return {shard};
  std::vector<Tensor> out;
  for (const StoredComponent& component : components) out.push_back(component.shard);
  return out;
}

int64_t ParameterTable::num_elements(bool trainable_only) const {
  int64_t count = 0;
  for (const auto& p : parameters_) {
    if (!trainable_only || p->trainable) count += numel(p->descriptor.global_shape);
  }
  return count;
}

void ParameterTable::set_precision(Dtype compute) {
  compute_ = compute;
  for (auto& p : parameters_) p->descriptor.dtype = p->trainable ? Dtype::f32 : compute;
}

void ParameterTable::place(MeshShape mesh, int rank) {
  mesh_ = std::move(mesh);
  rank_ = rank;
}

void ParameterTable::release() {
  for (auto& p : parameters_) {
    for (Tensor* tensor : {&p->value, &p->gradient, &p->reduced}) tensor->reset();
    p->gradient_written = false;
    release_components(*p);
    if (p->is_here || (p->shard && p->shard.num_elements() > 0)) p->shard.reset();
  }
}

void ParameterTable::allocate(Device device) {
  MemoryTag tag(MemoryCategory::kParameters);
  for (auto& p : parameters_) {
    if (p->shard && !p->is_here) continue;  // see release()
    const Layout layout(p->descriptor, mesh_);
    const auto pieces = layout.pieces(rank_);
    p->owned = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.owned; });
    const std::vector<int64_t> shape = sizes_of(layout.local_shape(rank_));
    const Device home = p->offloaded ? device.host() : device;
    const bool pinned = p->pinned && device.spec().pins_host_memory;
    if (p->is_quantized()) {
      for (size_t i = 0; i < p->components.size(); ++i) allocate_component(*p, i, home, device, pinned);
      continue;
    }
    p->shard = pinned ? pinned_tensor(shape, p->descriptor.dtype) : Tensor::empty(shape, p->descriptor.dtype, home);
    int64_t num_logical = 0;
    for (const Piece& piece : pieces) num_logical += numel(piece.box);
    if (num_logical < p->shard.num_elements()) p->shard.zero();  // padding
    if (shape != p->local_shape || !p->is_here) continue;
    p->value = p->descriptor.dtype == compute_ && home == device ? p->shard : Tensor::empty(shape, compute_, device);
  }
}

void ParameterTable::allocate_component(Parameter& p, size_t i, Device home, Device device, bool pinned) {
  StoredComponent& stored = p.components[i];
  stored.descriptor = component_descriptor(p.descriptor, p.storage->components()[i]);
  stored.local_shape = whole_component(p, i);
  const Dtype dtype = stored.descriptor.dtype;
  const std::vector<int64_t> shape = sizes_of(Layout(stored.descriptor, mesh_).local_shape(rank_));
  stored.shard = pinned ? pinned_tensor(shape, dtype) : Tensor::empty(shape, dtype, home);
  stored.shard.zero();  // padding, also on a rank without elements
  if (shape != stored.local_shape) return;
  stored.value = home == device ? stored.shard : Tensor::empty(shape, dtype, device);
}

// The shape of component i before strategies that divide only storage cut it.
std::vector<int64_t> ParameterTable::whole_component(const Parameter& p, size_t i) const {
  Descriptor descriptor = p.components[i].descriptor;
  if (p.storage->components()[i].unit_elements == 0) return sizes_of(descriptor.global_shape);
  descriptor.placements.resize(p.num_layout_placements);
  return sizes_of(Layout(std::move(descriptor), mesh_).local_shape(rank_));
}

std::vector<LocalRun> ParameterTable::local_runs(const Parameter& p) const {
  std::vector<LocalRun> out;
  for (const Piece& piece : Layout(p.descriptor, mesh_).pieces(rank_))
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

namespace {

constexpr int64_t kEncodedElements = 1 << 20;  // encoded at a time

int64_t encoded_piece(const QuantStorage& storage) {
  const int64_t block = storage.block_elements();
  return (kEncodedElements + block - 1) / block * block;
}

// One-dimensional tensors in host memory into which components of `count` elements are encoded.
std::vector<Tensor> encode_buffers(const QuantStorage& storage, int64_t count) {
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

}  // namespace

void ParameterTable::start_encoding(Parameter& p) const {
  MemoryTag tag(MemoryCategory::kParameters);
  for (size_t i = 0; i < p.components.size(); ++i)
    if (p.storage->is_staged(i))
      p.components[i].staged =
          Tensor::zeros(p.components[i].shard.sizes(), static_cast<Dtype>(p.storage->raw(i).staged_dtype));
}

void ParameterTable::encode(Parameter& p, int64_t begin, std::span<const float> values) const {
  const QuantStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p);
  const auto count = static_cast<int64_t>(values.size());
  CHASSIS_CHECK(begin >= 0 && begin + count <= num_local(runs), "values of another rank");
  const std::vector<Tensor> encoded = encode_buffers(storage, count);
  for_each_parallel(cut_runs(runs, begin, begin + count, storage.block_elements()), [&](const LocalRun& run) {
    QuantPart part{p.descriptor.global_shape, {run.begin, run.count}, addresses(encoded)};
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
void ParameterTable::finish_components(Parameter& p, const WholeStaged& whole) const {
  const QuantStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p);
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

void ParameterTable::verify_components(Parameter& p, const std::string& state) const {
  if (!p.is_here) return;
  const QuantStorage& storage = *p.storage;
  std::vector<Tensor> here;
  for (const StoredComponent& component : p.components) here.push_back(component.shard.to(Device{}).contiguous());
  if (!state.empty()) {
    storage.read_state({p.descriptor.global_shape, {0, numel(p.descriptor.global_shape)}, addresses(here)}, state);
    for (size_t i = 0; i < here.size(); ++i)
      if (storage.components()[i].unit_elements == 0) p.components[i].shard.copy_from(here[i]);
  }
  for (const LocalRun& run : local_runs(p)) storage.verify(part_of(p, here, run));
}

// The components of a run, in host memory.
QuantPart ParameterTable::part_of(const Parameter& p, const std::vector<Tensor>& components, const LocalRun& run) {
  QuantPart part{p.descriptor.global_shape, {run.begin, run.count}, {}};
  for (size_t i = 0; i < components.size(); ++i)
    part.components.push_back(components[i].data_as<std::byte>() +
                              p.storage->value_offset(i, run.local) * size_bytes(components[i].dtype()));
  return part;
}

void ParameterTable::allocate_components(Parameter& p) {
  const MemoryTag tag(MemoryCategory::kParameters);
  for (size_t i = 0; i < p.components.size(); ++i) allocate_component(p, i, Device{}, Device{}, false);
}

void ParameterTable::release_components(Parameter& p) {
  for (StoredComponent& component : p.components) component = {};
}

void ParameterTable::decode(const Parameter& p, int64_t begin, std::span<float> values) const {
  const QuantStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p);
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

std::string ParameterTable::state_text(const Parameter& p, Dtype dtype) {
  const QuantStorage& storage = *p.storage;
  QuantPart part{p.descriptor.global_shape, {0, numel(p.descriptor.global_shape)}, {}};
  for (size_t i = 0; i < p.components.size(); ++i)
    part.components.push_back(storage.components()[i].unit_elements == 0 ? p.components[i].shard.data() : nullptr);
  return storage.write_state(part, dtype);
}

// Every rank computes the staged components of the whole parameter, so that none waits for another.
void ParameterTable::initialize_quantized(Parameter& p, uint64_t seed) {
  const QuantStorage& storage = *p.storage;
  const std::vector<LocalRun> runs = local_runs(p);
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
  finish_components(p, [&](const Parameter&, size_t i) { return staged[i]; });
}

void ParameterTable::initialize(uint64_t seed, Which which) {
  for (auto& p : parameters_) {
    if ((which == Which::kAdded && !p->added) || !p->is_here) continue;
    if (p->is_quantized()) {
      initialize_quantized(*p, seed);
      continue;
    }
    if (p->init == CHASSIS_INIT_ZEROS) p->shard.zero();
    if (p->init == CHASSIS_INIT_ZEROS) continue;
    const Tensor flat = p->shard.flat();
    const Shape& global_shape = p->descriptor.global_shape;
    for (const Piece& piece : Layout(p->descriptor, mesh_).pieces(rank_)) {
      const Copy fill{piece.box, row_major_view(global_shape, piece.box), piece.local};
      for_each_run(fill, [&](int64_t index, int64_t begin, int64_t count) {
        if (p->init == CHASSIS_INIT_ONES) flat.narrow(0, begin, count).fill(1.0);
        if (p->init == CHASSIS_INIT_NORMAL || p->init == CHASSIS_INIT_UNIFORM)
          initialize_random(*p, flat, begin, index, count, seed);
      });
    }
  }
  update_values();
}

void ParameterTable::update_values() {
  for (auto& p : parameters_)
    if (p->value && p->value.handle() != p->shard.handle() && !p->shard.shares_storage_with(p->value) &&
        p->value.sizes() == p->shard.sizes())
      p->value.copy_from(p->shard);
}

void ParameterTable::start_step() {
  for (auto& p : parameters_) {
    p->gradient_written = false;
    p->reduced.reset();
  }
}

}  // namespace chassis
