// Shards are allocated and filled piece by piece, as their descriptors divide them.
#include "host/program/parameters.hpp"

#include <algorithm>

#include "host/base/error.hpp"
#include "host/service/device.hpp"
#include "host/service/memory.hpp"
#include "host/service/rng.hpp"
#include "host/state/intersect.hpp"

namespace chassis {
namespace {

Descriptor describe(const Program& program, const ProgramLayout& layout, const Slot& slot, std::string name) {
  Descriptor descriptor = Descriptor::plain(std::move(name), Dtype::f32, Shape(program.global_shape(slot)));
  for (size_t a = 0; a < slot.sharding.size(); ++a) {
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
    if (p.init == CHASSIS_INIT_NORMAL) random_normal(seed, p.name, static_cast<uint64_t>(index + done), values);
    if (p.init == CHASSIS_INIT_UNIFORM) {
      random_uniform(seed, p.name, static_cast<uint64_t>(index + done), values);
      for (float& value : values) value = 2.0f * value - 1.0f;
    }
    const int64_t sizes[] = {length};
    const Tensor slice = target.narrow(0, begin + done, length);
    slice.copy_from(Tensor::borrow(piece.data(), sizes, Dtype::f32));
    slice.multiply(p.init_std);
  }
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
        parameter->local_shape = layout.local_shape(program, slot);
        parameter->role = slot.role;
        parameter->trainable = !slot.frozen;
        parameter->added = slot.added;
        parameter->lr_scale = slot.lr_scale;
        parameter->init = slot.init;
        parameter->init_std = slot.init_std;
        unit.push_back(parameter.get());
        parameters_.push_back(std::move(parameter));
      }
    }
  size_t unit = 0;
  for (const Chain& chain : program.chains)
    for (uint32_t type : chain.blocks) {
      const auto& slots = program.blocks[type].slots;
      for (size_t s = 0; s < slots.size(); ++s)
        if (!slots[s].tied_to.empty()) units_[unit][s] = find(slots[s].tied_to);
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

void ParameterTable::set_precision(Dtype compute) {
  compute_ = compute;
  for (auto& p : parameters_) p->descriptor.dtype = p->trainable ? Dtype::f32 : compute;
}

void ParameterTable::place(MeshShape mesh, int rank) {
  mesh_ = std::move(mesh);
  rank_ = rank;
}

void ParameterTable::allocate(Device device) {
  MemoryTag tag(MemoryCategory::kParameters);
  for (auto& p : parameters_) {
    const Layout layout(p->descriptor, mesh_);
    const auto pieces = layout.pieces(rank_);
    p->owned = std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.owned; });
    const std::vector<int64_t> shape = sizes_of(layout.local_shape(rank_));
    const Device home = p->offloaded ? device.host() : device;
    const bool pinned = p->pinned && device.type == Device::Type::kCuda;
    p->shard = pinned ? pinned_tensor(shape, p->descriptor.dtype) : Tensor::empty(shape, p->descriptor.dtype, home);
    if (p->descriptor.is_padded() || layout.is_flat()) p->shard.zero();
    if (shape != p->local_shape) continue;
    p->value = p->descriptor.dtype == compute_ && home == device ? p->shard : Tensor::empty(shape, compute_, device);
  }
}

void ParameterTable::initialize(uint64_t seed, Which which) {
  for (auto& p : parameters_) {
    if (which == Which::kAdded && !p->added) continue;
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
