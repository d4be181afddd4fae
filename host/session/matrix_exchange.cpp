// Packs the parts for each owner one after another, since they may differ in size.
#include "host/session/matrix_exchange.hpp"

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "host/service/strided.hpp"

namespace chassis {
namespace {

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

MatrixExchange::MatrixExchange(Communicator& communicator, ProcessGroup& group, Device device,
                               std::vector<Parameter*> matrices)
    : communicator_(communicator),
      group_(group),
      device_(device),
      matrices_(std::move(matrices)),
      stored_(static_cast<size_t>(group.size())),
      parts_of_own_(static_cast<size_t>(group.size())),
      pieces_of_own_(static_cast<size_t>(group.size())) {
  for (size_t i = 0; i < matrices_.size(); ++i) stored_[i] = static_cast<uint64_t>(matrices_[i]->shard.num_elements());
  if (static_cast<size_t>(group.rank()) >= matrices_.size()) return;
  own_ = matrices_[static_cast<size_t>(group.rank())];
  const Layout layout(own_->descriptor, communicator.mesh());
  for (size_t r = 0; r < parts_of_own_.size(); ++r) {
    const int rank = group.ranks()[r];
    parts_of_own_[r] = static_cast<uint64_t>(numel(layout.local_shape(rank)));
    pieces_of_own_[r] = layout.pieces(rank);
  }
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

// Each rank sends its part of the parameter, then its part of the gradient.
MatrixExchange::Whole MatrixExchange::collect() const {
  const Device home = matrices_.front()->shard.device();
  const std::vector<uint64_t> counts = doubled(stored_), recv_counts = doubled(parts_of_own_);
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
  if (own_ == nullptr) return {};
  const Shape& shape = own_->descriptor.global_shape;
  const auto empty = [&] { return Tensor::empty(std::span(shape.begin(), shape.end()), Dtype::f32, home); };
  const Whole whole = {empty(), empty()};
  for (size_t r = 0; r < recv_counts.size(); ++r) {
    const Tensor both = part_at(received, recv_counts, r);
    const int64_t half = both.num_elements() / 2;
    for (const Piece& piece : pieces_of_own_[r]) {
      const Shape sizes = piece.box.sizes();
      const StridedView place = row_major_view(shape, piece.box);
      strided(whole.param.flat(), sizes, place).copy_from(strided(both.narrow(0, 0, half), sizes, piece.local));
      strided(whole.grad.flat(), sizes, place).copy_from(strided(both.narrow(0, half, half), sizes, piece.local));
    }
  }
  return whole;
}

void MatrixExchange::spread(const Tensor& param) const {
  const Tensor send = flat_of(parts_of_own_, matrices_.front()->shard.device());
  if (own_ != nullptr) {
    send.zero();  // padding
    for (size_t r = 0; r < pieces_of_own_.size(); ++r)
      for (const Piece& piece : pieces_of_own_[r]) {
        const Shape sizes = piece.box.sizes();
        strided(part_at(send, parts_of_own_, r), sizes, piece.local)
            .copy_from(strided(param.flat(), sizes, row_major_view(own_->descriptor.global_shape, piece.box)));
      }
  }
  const Tensor received = exchange(send, parts_of_own_, stored_);
  for (size_t i = 0; i < matrices_.size(); ++i) matrices_[i]->shard.flat().copy_from(part_at(received, stored_, i));
}

}  // namespace chassis
