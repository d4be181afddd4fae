// Shards are allocated and filled piece by piece, as their descriptors divide them.
#include "host/compile/parameters.hpp"

#include <algorithm>
#include <numeric>

#include "host/base/error.hpp"
#include "host/base/mesh_axes.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

// Refuses a division that the storage does not allow, or that cuts blocks: a block's codes and scales lie on one rank.
void refuse_cut_blocks(const Descriptor& descriptor, const QuantizedStorage& storage, const Shape& local_shape,
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
  const Shape& whole = descriptor.global_shape;
  const int64_t columns = whole.ndim() > 0 ? whole[whole.ndim() - 1] : 1;
  const auto is_inner = [&](const Placement& p) { return p.dim > 0 && p.dim < whole.ndim() - 1; };
  if (std::ranges::any_of(descriptor.placements, is_inner) && columns % block != 0)
    throw Error(ExitCode::kConfig, where,
                parameter + "in blocks of " + std::to_string(block) + " elements, and axis '" + axis +
                    "' divides rows of " + std::to_string(columns) + ", which are no whole blocks")
        .hint("choose blocks of " + std::to_string(std::gcd(columns, block)) +
              " elements or fewer in [quant] if its plugin lets you, " + undivided);
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

Descriptor describe(const Program& program, const ProgramLayout& layout, const ParameterSlot& slot, std::string name) {
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
void expect_equal_partial_sums(const ParameterSlot& tied, const Parameter* parameter) {
  if (parameter == nullptr || tied.partial_over == parameter->partial_over) return;
  const std::string& axis = (tied.partial_over.empty() ? parameter->partial_over : tied.partial_over).front();
  throw config_error("parameter '" + parameter->name + "' is tied to '" + tied.name + "': along axis '" + axis +
                     "' each rank would have a part of its gradient from one of them, and the whole from the other")
      .hint("divide the dim that both share, usually the vocabulary");
}

// Throws if the parts differ: units that share a tensor read the same part of it.
void expect_equal_parts(const Program& program, const ProgramLayout& layout, const ParameterSlot& tied,
                        const Parameter* parameter) {
  if (parameter == nullptr || layout.local_shape(program, tied) == parameter->local_shape) return;
  throw config_error("parameter '" + parameter->name + "' is tied to '" + tied.name +
                     "': one of them is divided, and a plugin's own op needs the whole of the other")
      .hint(
          "if that op computes a part of its output from a part of the parameter, let the model declare its "
          "mixed_dims");
}

}  // namespace

ParameterTable::ParameterTable(const Program& program, const ProgramLayout& layout, const ParameterOptions& options)
    : left_out_(program.left_out), compute_(options.compute) {
  std::vector<MeshAxis> axes;
  for (const LayoutAxis& axis : layout.axes) axes.push_back({axis.name, static_cast<int>(axis.size)});
  mesh_ = MeshShape(std::move(axes));
  for (const Chain& chain : program.chains)
    for (size_t i = 0; i < chain.blocks.size(); ++i) add_unit(program, layout, chain, i);
  join_ties(program, layout);
  if (options.freeze) options.freeze(*this);
  for (auto& p : parameters_) p->descriptor.dtype = p->trainable ? Dtype::f32 : compute_;
}

void ParameterTable::add_unit(const Program& program, const ProgramLayout& layout, const Chain& chain, size_t block) {
  auto& unit = units_.emplace_back();
  for (const ParameterSlot& slot : program.blocks[chain.blocks[block]].slots) {
    if (!slot.tied_to.empty()) {
      unit.push_back(nullptr);
      continue;
    }
    auto parameter = std::make_unique<Parameter>();
    parameter->name = chain.parameter_name(block, slot);
    parameter->descriptor = describe(program, layout, slot, parameter->name);
    parameter->granularity = parameter->descriptor.granularity;
    parameter->num_layout_placements = parameter->descriptor.placements.size();
    parameter->local_shape = layout.local_shape(program, slot);
    parameter->role = slot.role;
    parameter->trainable = !slot.frozen;
    parameter->partial_over = slot.partial_over;
    parameter->added = slot.added;
    parameter->of_objective = slot.of_objective;
    parameter->lr_scale = slot.lr_scale;
    parameter->init = slot.init;
    parameter->init_std = slot.init_std;
    parameter->storage = slot.components;
    if (slot.components) parameter->components.resize(slot.components->components().size());
    unit.push_back(parameter.get());
    parameters_.push_back(std::move(parameter));
  }
}

void ParameterTable::join_ties(const Program& program, const ProgramLayout& layout) {
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

int64_t ParameterTable::num_elements(bool trainable_only) const {
  int64_t count = 0;
  for (const auto& p : parameters_) {
    if (!trainable_only || p->trainable) count += numel(p->descriptor.global_shape);
  }
  return count;
}

void ParameterTable::place(MeshShape mesh, int rank) {
  CHASSIS_CHECK(!is_allocated_, "parameters are placed before they are allocated");
  mesh_ = std::move(mesh);
  rank_ = rank;
}

void ParameterTable::release() {
  is_allocated_ = false;
  for (auto& p : parameters_) release_one(*p);
}

void ParameterTable::release_one(Parameter& p) {
  for (Tensor* tensor : {&p.value, &p.gradient, &p.reduced}) tensor->reset();
  p.gradient_written = false;
  QuantizedParameters::release(p);
  if (p.is_here || (p.shard && p.shard.num_elements() > 0)) p.shard.reset();
}

void ParameterTable::take_tensors(Parameter& p, Parameter& from) {
  p.owned = from.owned;
  p.shard = std::move(from.shard);
  p.value = std::move(from.value);
  for (size_t i = 0; i < p.components.size(); ++i) p.components[i] = std::move(from.components[i]);
  release_one(from);
}

// Shares the tensors of `from`, if both store the same. False if they do not.
bool ParameterTable::borrow(Parameter& p, const Parameter& from) {
  if (p.trainable || from.trainable || p.descriptor != from.descriptor || p.local_shape != from.local_shape ||
      p.is_here != from.is_here || p.offloaded != from.offloaded || p.components.size() != from.components.size())
    return false;
  p.shard = from.shard;
  p.value = from.value;
  for (size_t i = 0; i < p.components.size(); ++i) {
    p.components[i].descriptor = from.components[i].descriptor;
    p.components[i].local_shape = from.components[i].local_shape;
    p.components[i].shard = from.components[i].shard;
    p.components[i].value = from.components[i].value;
  }
  return true;
}

void ParameterTable::copy_from(const ParameterTable& from) {
  for (auto& p : parameters_) {
    if (!p->is_here) continue;
    const Parameter* source = from.find(p->name);
    CHASSIS_CHECK(source != nullptr, p->name);
    if (p->is_quantized()) {
      CHASSIS_CHECK(p->components.front().shard.shares_storage_with(source->components.front().shard), p->name);
      continue;
    }
    if (p->shard.shares_storage_with(source->shard)) continue;
    if (p->shard.sizes() == p->local_shape && source->value && source->value.sizes() == source->local_shape) {
      p->shard.copy_from(source->value);  // a strategy may divide what is trained, and keep it whole for the ops
      continue;
    }
    if (p->shard.sizes() != source->shard.sizes() || p->descriptor.placements != source->descriptor.placements)
      throw config_error("the strategies of [[parallel]] divide the frozen copy of '" + p->name +
                         "' in another way than the trained parameter")
          .hint("use an adapter, whose reference needs no copy, or another strategy");
    p->shard.copy_from(source->shard);
  }
  update_values();
}

void ParameterTable::allocate(Device device, const ParameterTable* lender) {
  CHASSIS_CHECK(!is_allocated_, "parameters are allocated once");
  MemoryTag tag(MemoryCategory::kParameters);
  for (auto& p : parameters_) {
    if (p->shard && !p->is_here) continue;  // see release()
    if (const Parameter* from = lender ? lender->find(p->name) : nullptr; from != nullptr && borrow(*p, *from))
      continue;
    allocate_one(*p, device);
  }
  is_allocated_ = true;
}

void ParameterTable::allocate_one(Parameter& p, Device device) const {
  const MemoryTag tag(MemoryCategory::kParameters);
  const Layout layout(p.descriptor, mesh_);
  const auto pieces = layout.pieces(rank_);
  p.owned = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.owned; });
  const std::vector<int64_t> shape = sizes_of(layout.local_shape(rank_));
  const Device home = p.offloaded ? device.host() : device;
  const bool pinned = p.pinned && device.spec().pins_host_memory;
  if (p.is_quantized()) {
    quantized().allocate(p, home, device, pinned);
    return;
  }
  p.shard = pinned ? pinned_tensor(shape, p.descriptor.dtype) : Tensor::empty(shape, p.descriptor.dtype, home);
  int64_t num_logical = 0;
  for (const Piece& piece : pieces) num_logical += numel(piece.box);
  if (num_logical < p.shard.num_elements()) p.shard.zero();  // padding
  allocate_value(p, device);
}

void ParameterTable::allocate_value(Parameter& p, Device device) const {
  if (p.is_quantized() || p.value || !p.is_here || p.shard.sizes() != p.local_shape) return;
  const MemoryTag tag(MemoryCategory::kParameters);
  const bool is_shard = p.descriptor.dtype == compute_ && p.shard.device() == device;
  p.value = is_shard ? p.shard : Tensor::empty(p.local_shape, compute_, device);
}

// If an allocation fails, nothing is freed: reports of the failure show what was allocated.
ParameterStorage::ParameterStorage(ParameterTable& parameters, Device device, const ParameterTable* lender) {
  parameters.allocate(device, lender);
  parameters_.reset(&parameters);
}

ParameterStorage::ParameterStorage(ParameterTable& parameters) {
  CHASSIS_CHECK(!parameters.is_allocated_, "parameters are allocated once");
  parameters.is_allocated_ = true;
  parameters_.reset(&parameters);
}

void ParameterTable::initialize(uint64_t seed, Which which) {
  initialize(seed, [which](const Parameter& p) { return which == Which::kAll || p.added; });
}

void ParameterTable::initialize(uint64_t seed, const std::function<bool(const Parameter& p)>& which) {
  for (auto& p : parameters_) {
    if (!p->is_here || !which(*p)) continue;
    if (p->is_quantized()) {
      quantized().initialize(*p, seed);
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

uint64_t ParameterTable::stored_bytes(const ParameterTable* lender) const {
  const auto bytes_of = [](const Tensor& shard, const Tensor& value, const Tensor& lent) {
    if (shard && lent && shard.shares_storage_with(lent)) return uint64_t{0};
    const bool is_apart = value && !(shard && value.shares_storage_with(shard));
    return (shard ? shard.num_bytes() : 0) + (is_apart ? value.num_bytes() : 0);
  };
  uint64_t bytes = 0;
  for (const auto& p : parameters_) {
    const Parameter* const from = lender != nullptr ? lender->find(p->name) : nullptr;
    bytes += bytes_of(p->shard, p->value, from != nullptr ? from->shard : Tensor());
    for (size_t i = 0; i < p->components.size(); ++i) {
      const bool is_there = from != nullptr && i < from->components.size();
      bytes +=
          bytes_of(p->components[i].shard, p->components[i].value, is_there ? from->components[i].shard : Tensor());
    }
  }
  return bytes;
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
