// Values may begin within a block, and at the second half of a byte.
#include "weight.hpp"

#include <algorithm>

#include "loops.hpp"
#include "nested.hpp"

namespace bnb4 {

using namespace chassis;

namespace {

constexpr int64_t kRestored = 128;  // blocks whose absmax is restored at a time

void dequantize(const float* map, const uint8_t* codes, const float* absmax, int64_t n, int64_t block, float* out) {
  loops().dequantize_f32(map, codes, absmax, n, block, out);
}
void dequantize(const float* map, const uint8_t* codes, const float* absmax, int64_t n, int64_t block, uint16_t* out) {
  loops().dequantize_bf16(map, codes, absmax, n, block, out);
}

}  // namespace

WeightShape::WeightShape(const NodeView& node, int64_t block) : block(block) {
  const OperandView weight = node.param(0);
  rows = weight.size(-2), columns = weight.size(-1);
  if (weight.num_dims() == 3) experts = weight.size(0);
  const int64_t whole = weight.whole_size(-1);
  first = (weight.begin(-2) * whole + weight.begin(-1)) / block;
  whole_blocks = (weight.whole_size(-2) * whole + block - 1) / block;
  if (whole == columns) return;
  row_blocks = columns / block;
  skipped = (whole - columns) / block;
}

Weight::Weight(const Call& call, const WeightShape& shape) : shape_(shape) {
  const BorrowedTensor codes = call.component(0, kCodes), absmax = call.component(0, kAbsmax);
  codes_ = codes.address<uint8_t>();
  map_ = call.component(0, kQuantMap).address<float>();
  if (absmax.dtype() == CHASSIS_DTYPE_F32) {
    absmax_ = absmax.address<float>();
  } else {
    nested_ = absmax.address<uint8_t>();
    nested_absmax_ = call.component(0, kNestedAbsmax).address<float>();
    nested_map_ = call.component(0, kNestedMap).address<float>();
    offset_ = call.component(0, kNestedOffset).address<float>();
  }
  const int64_t elements = shape.experts * rows() * columns(), blocks = (elements + block() - 1) / block();
  if (codes.num_elements() != (elements + 1) / 2 || absmax.num_elements() != blocks)
    throw Failure(CHASSIS_INTERNAL, "a weight of ", elements, " elements has ", codes.num_elements(), " codes and ",
                  absmax.num_elements(), " scales, expected ", (elements + 1) / 2, " and ", blocks);
}

// Every expert has tables of its own.
Weight Weight::of_expert(int64_t expert) const {
  Weight out = *this;
  const int64_t elements = expert * rows() * columns(), blocks = elements / block();
  out.codes_ += elements / 2;
  out.map_ += expert * 16;
  if (absmax_ != nullptr) out.absmax_ += blocks;
  if (nested_ == nullptr) return out;
  out.nested_ += blocks;
  out.nested_absmax_ += expert * ((shape_.whole_blocks + kNestedBlock - 1) / kNestedBlock);
  out.nested_map_ += expert * static_cast<int64_t>(kDynamicMap.size());
  out.offset_ += expert;
  return out;
}

const float* Weight::absmax_of(int64_t first, int64_t count, float* restored) const {
  if (nested_ == nullptr) return absmax_ + first;
  for (int64_t done = 0; done < count;) {
    const int64_t index = first + done,
                  some = shape_.skipped == 0 ? count
                                             : std::min(count - done, shape_.row_blocks - index % shape_.row_blocks);
    restore_absmax(nested_ + index, nested_absmax_, nested_map_, *offset_, shape_.in_whole(index), some,
                   restored + done);
    done += some;
  }
  return restored;
}

template <typename T>
void Weight::read_as(int64_t first, int64_t count, T* out) const {
  float restored[kRestored];
  while (count > 0) {
    const int64_t index = first / block(), within = first % block();
    int64_t n = std::min(count, within == 0 ? kRestored * block() : block() - within);
    const float* const absmax = absmax_of(index, (within + n + block() - 1) / block(), restored);
    if (first % 2 == 0) {
      dequantize(map_, codes_ + first / 2, absmax, n, block(), out);
    } else {
      T both[2];
      dequantize(map_, codes_ + first / 2, absmax, 2, block(), both);
      *out = both[1];
      n = 1;
    }
    first += n, count -= n, out += n;
  }
}

template void Weight::read_as(int64_t, int64_t, float*) const;
template void Weight::read_as(int64_t, int64_t, uint16_t*) const;

}  // namespace bnb4
