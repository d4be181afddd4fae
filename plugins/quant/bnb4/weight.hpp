// A weight's components in one call, and their values.
#pragma once

#include "chassis/call.hpp"
#include "chassis/node.hpp"

namespace bnb4 {

// Components of a weight, by their place in its storage.
enum : uint32_t { kCodes, kAbsmax, kQuantMap, kNestedAbsmax, kNestedMap, kNestedOffset };

// A weight of rows · columns elements, in blocks; it may be a part of a larger one. Those of experts are stored one
// after the other, and are all a part in the same way.
struct WeightShape {
  int64_t rows, columns, block;
  int64_t experts = 1;
  // Nested scales count the blocks of the whole weight: the part begins at block `first`, and of each row of the whole
  // weight it has `row_blocks` blocks and lacks `skipped`.
  int64_t first = 0, row_blocks = 0, skipped = 0;
  int64_t whole_blocks = 0;  // of the whole weight

  // Parameter 0 of a node, [rows, columns] or [experts, rows, columns].
  WeightShape(const chassis::NodeView& node, int64_t block);
  // The index of block `index` of this part in the whole weight.
  int64_t in_whole(int64_t index) const { return first + index + (skipped == 0 ? 0 : index / row_blocks * skipped); }
};

class Weight {
 public:
  // Parameter 0 of the call: the first expert's if there are several. The shape must outlive it.
  Weight(const chassis::Call& call, const WeightShape& shape);
  Weight of_expert(int64_t expert) const;

  int64_t rows() const { return shape_.rows; }
  int64_t columns() const { return shape_.columns; }
  int64_t block() const { return shape_.block; }
  const float* map() const { return map_; }
  const uint8_t* codes() const { return codes_; }
  bool is_nested() const { return nested_ != nullptr; }
  const float* absmax() const { return absmax_; }  // NULL if nested
  const uint8_t* nested() const { return nested_; }
  const float* nested_absmax() const { return nested_absmax_; }
  const float* nested_map() const { return nested_map_; }
  const float* offset() const { return offset_; }

  // The absmax of blocks [first, first + count); if they are nested, they are restored into `restored`.
  const float* absmax_of(int64_t first, int64_t count, float* restored) const;

  // Reads elements [first, first + count), row by row, as fp32 or bf16.
  void read(int64_t first, int64_t count, float* out) const { read_as(first, count, out); }
  void read(int64_t first, int64_t count, uint16_t* out) const { read_as(first, count, out); }

 private:
  template <typename T>
  void read_as(int64_t first, int64_t count, T* out) const;

  const WeightShape& shape_;
  const uint8_t* codes_ = nullptr;
  const float *map_ = nullptr, *absmax_ = nullptr;
  const uint8_t* nested_ = nullptr;
  const float *nested_absmax_ = nullptr, *nested_map_ = nullptr, *offset_ = nullptr;
};

}  // namespace bnb4
