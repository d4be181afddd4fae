#include "host/session/matrix_exchange.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

namespace chassis {
namespace {

std::vector<int64_t> numbers(const Shape& shape) { return {shape.begin(), shape.end()}; }

Tensor region(const Tensor& flat, const Box& box, const StridedView& view) {
  return flat.strided(numbers(box.sizes()), numbers(view.strides), view.offset);
}

// Parts of lengths `counts` follow each other in a flat tensor.
Tensor part_at(const Tensor& flat, std::span<const uint64_t> counts, size_t i) {
  const uint64_t begin = std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(i), uint64_t{0});
  return flat.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(counts[i]));
}

Tensor flat_of(std::span<const uint64_t> counts, Device device) {
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  return Tensor::empty(std::vector<int64_t>{static_cast<int64_t>(total)}, Dtype::f32, device);
}

std::vector<uint64_t> doubled(std::vector<uint64_t> counts) {
  for (uint64_t& count : counts) count *= 2;
  return counts;
}

// The layout pass's placements, which come first.
std::span<const Placement> of_layout(const Parameter& p) {
  return std::span(p.descriptor.placements).first(p.num_layout_placements);
}

}  // namespace

std::string dividing_axis(const Parameter& parameter) {
  std::string found;
  for (const Placement& placement : of_layout(parameter)) {
    if (placement.kind != Placement::Kind::kDimChunk) continue;
    if (!found.empty() || placement.axes.size() != 1) return {};
    found = placement.axes.front();
  }
  return found;
}

Descriptor undivided(const Parameter& parameter, int coordinate) {
  Descriptor out = parameter.descriptor;
  for (size_t i = 0; i < parameter.num_layout_placements; ++i)
    if (out.placements[i].kind == Placement::Kind::kDimChunk)
      out.placements[i] = Placement::only_on(out.placements[i].axes, coordinate);
  out.padded_shape = out.global_shape;
  out.granularity = parameter.granularity;
  return out;
}

MatrixExchange::MatrixExchange(Communicator& communicator, CommGroup& group, Device device,
                               std::vector<Parameter*> matrices)
    : communicator_(communicator), group_(group), device_(device), matrices_(std::move(matrices)) {}

const Parameter* MatrixExchange::own() const {
  const auto rank = static_cast<size_t>(group_.rank());
  return rank < matrices_.size() ? matrices_[rank] : nullptr;
}

std::vector<uint64_t> MatrixExchange::stored_elements() const {
  std::vector<uint64_t> out(static_cast<size_t>(group_.size()));
  for (size_t i = 0; i < matrices_.size(); ++i) out[i] = static_cast<uint64_t>(matrices_[i]->shard.num_elements());
  return out;
}

std::vector<uint64_t> MatrixExchange::parts_of_own() const {
  std::vector<uint64_t> out(static_cast<size_t>(group_.size()));
  if (own() == nullptr) return out;
  const Layout layout(own()->descriptor, communicator_.mesh());
  std::transform(group_.ranks().begin(), group_.ranks().end(), out.begin(),
                 [&](int rank) { return static_cast<uint64_t>(numel(layout.local_shape(rank))); });
  return out;
}

Tensor MatrixExchange::exchange(const Tensor& send, std::vector<uint64_t> counts,
                                std::vector<uint64_t> recv_counts) const {
  Collective call;
  call.op = CHASSIS_COMM_ALL_TO_ALL;
  call.send = send.to(device_);
  call.recv = flat_of(recv_counts, device_);
  call.name = "whole " + matrices_.front()->name;
  call.counts = std::move(counts);
  call.recv_counts = std::move(recv_counts);
  const Tensor received = call.recv;
  communicator_.run(group_, std::move(call));
  return received.to(send.device());
}

// From each rank come its part of the parameter and then that of the gradient.
MatrixExchange::Whole MatrixExchange::collect() const {
  const Device home = matrices_.front()->shard.device();
  const std::vector<uint64_t> counts = doubled(stored_elements()), recv_counts = doubled(parts_of_own());
  const Tensor send = flat_of(counts, home);
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const Tensor both = part_at(send, counts, i), gradient = matrices_[i]->step_gradient();
    const int64_t half = both.num_elements() / 2;
    both.narrow(0, 0, half).copy_from(matrices_[i]->shard.flat());
    if (gradient)
      both.narrow(0, half, half).copy_from(gradient.flat());
    else
      both.narrow(0, half, half).zero();
  }
  const Tensor received = exchange(send, counts, recv_counts);
  if (own() == nullptr) return {};
  const Shape& shape = own()->descriptor.global_shape;
  const Whole whole = {Tensor::empty(numbers(shape), Dtype::f32, home),
                       Tensor::empty(numbers(shape), Dtype::f32, home)};
  const Layout layout(own()->descriptor, communicator_.mesh());
  for (size_t r = 0; r < recv_counts.size(); ++r) {
    const Tensor both = part_at(received, recv_counts, r);
    const int64_t half = both.num_elements() / 2;
    for (const Piece& piece : layout.pieces(group_.ranks()[r])) {
      const StridedView place = row_major_view(shape, piece.box);
      region(whole.param.flat(), piece.box, place).copy_from(region(both.narrow(0, 0, half), piece.box, piece.local));
      region(whole.grad.flat(), piece.box, place).copy_from(region(both.narrow(0, half, half), piece.box, piece.local));
    }
  }
  return whole;
}

void MatrixExchange::spread(const Tensor& param) const {
  const std::vector<uint64_t> counts = parts_of_own(), recv_counts = stored_elements();
  const Tensor send = flat_of(counts, matrices_.front()->shard.device());
  if (own() != nullptr) {
    send.zero();  // padding
    const Layout layout(own()->descriptor, communicator_.mesh());
    for (size_t r = 0; r < counts.size(); ++r)
      for (const Piece& piece : layout.pieces(group_.ranks()[r]))
        region(part_at(send, counts, r), piece.box, piece.local)
            .copy_from(region(param.flat(), piece.box, row_major_view(own()->descriptor.global_shape, piece.box)));
  }
  const Tensor received = exchange(send, counts, recv_counts);
  for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i]->shard.flat().copy_from(part_at(received, recv_counts, i));
}

}  // namespace chassis
