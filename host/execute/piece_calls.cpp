// Each call's part of the inputs, and the sum of the gradients of both calls.
#include "host/execute/piece_calls.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "host/graph/op_table.hpp"

namespace chassis {
namespace {

const std::string& axis_of(const Op& op) { return std::get<std::string>(*op.attr(kPieces)); }

}  // namespace

PieceCalls::PieceCalls(const ResolvedBlock& block, const Node& node, const RunContext& context)
    : block_(block),
      node_(node),
      whole_(context),
      layout_(context.layout->of_piece(axis_of(block.block.ops[node.ops[0]]))),
      context_(context) {
  const Op& op = block.block.ops[node.ops[0]];
  const LayoutAxis& axis = context.layout->axis(axis_of(op));
  axis_ = static_cast<size_t>(&axis - context.layout->axes.data());
  context_.layout = &layout_;
  const bool is_attention = op.spec().is_attention();
  const int64_t cached = is_attention && context.cache() != nullptr ? context.cache()->length() : 0;
  num_positions_ = cached + context.sizes.time;
  length_ = context_.local_shape(block.block.values[node.outputs[0]])[kTimeDim];
  for (int64_t piece = 0; piece < kRowPieces; ++piece)
    begins_[static_cast<size_t>(piece)] = cached + zigzag_begin(axis.coordinate, axis.size, piece, length_);
  skips_later_keys_ = is_attention && op.attr_int("causal", 0) != 0 && op.attr_int("prefix", 0) == 0;
}

bool PieceCalls::is_divided(size_t i) const {
  return value(i).sharding[axis_] == Sharding{Sharding::Kind::kShard, CHASSIS_DIM_TIME};
}

bool PieceCalls::is_of_positions(size_t i) const {
  const std::vector<DimId>& dims = value(i).dims;
  return dims.size() > kTimeDim && dims[kTimeDim] == CHASSIS_DIM_TIME;
}

int64_t PieceCalls::num_seen(int64_t piece) const {
  return skips_later_keys_ ? std::min(num_positions_, query_offset(piece) + length_) : num_positions_;
}

Tensor PieceCalls::input(size_t i, const Tensor& whole, int64_t piece) const {
  if (!whole) return whole;
  if (is_divided(i)) return piece_of(whole, kTimeDim, piece).contiguous();
  if (!is_of_positions(i) || sees_all(piece)) return whole;
  return whole.narrow(kTimeDim, 0, num_seen(piece)).contiguous();
}

std::vector<int64_t> PieceCalls::input_sizes(size_t i, int64_t piece) const {
  std::vector<int64_t> sizes = context_.local_shape(value(i));
  if (!is_divided(i) && is_of_positions(i)) sizes[kTimeDim] = num_seen(piece);
  return sizes;
}

void PieceCalls::add_gradient(size_t i, Tensor part, int64_t piece, Tensor& sum) const {
  const bool divided = is_divided(i);
  if (!part && !divided) return;
  if (!divided && !sum && sees_all(piece)) {
    sum = std::move(part);
    return;
  }
  if (!sum) {
    sum = Tensor::empty(whole_.local_shape(value(i)), dtype_of(value(i), context_.options->compute), context_.device());
    if (!divided) sum.zero();
  }
  if (!divided) return sum.narrow(kTimeDim, 0, part.size(kTimeDim)).add(part);
  const Tensor place = piece_of(sum, kTimeDim, piece);
  if (part)
    place.copy_from(part);
  else
    place.zero();
}

}  // namespace chassis
