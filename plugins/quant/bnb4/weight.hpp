// A weight's components in one call, and their values.
#pragma once

#include "chassis/call.hpp"

namespace bnb4 {

// Components of a weight, by their place in its storage.
enum : uint32_t { kCodes, kAbsmax, kQuantMap, kNestedAbsmax, kNestedMap, kNestedOffset };

class Weight {
 public:
  // Parameter 0 of the call, with rows · columns elements in blocks of `block`.
  Weight(const chassis::Call& call, int64_t rows, int64_t columns, int64_t block);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t block() const { return block_; }
  const float* map() const { return map_; }
  const uint8_t* codes() const { return codes_; }
  bool is_nested() const { return nested_ != nullptr; }
  const float* absmax() const { return absmax_; }  // NULL if nested
  const uint8_t* nested() const { return nested_; }
  const float* nested_absmax() const { return nested_absmax_; }
  const float* nested_map() const { return nested_map_; }
  const float* offset() const { return offset_; }

  // The absmax of blocks [first, first + count), in `restored` if they are nested.
  const float* absmax_of(int64_t first, int64_t count, float* restored) const;

  // Elements [first, first + count), row by row, in fp32, or bf16.
  void read(int64_t first, int64_t count, float* out) const { read_as(first, count, out); }
  void read(int64_t first, int64_t count, uint16_t* out) const { read_as(first, count, out); }

 private:
  template <typename T>
  void read_as(int64_t first, int64_t count, T* out) const;

  int64_t rows_, columns_, block_;
  const uint8_t* codes_ = nullptr;
  const float *map_ = nullptr, *absmax_ = nullptr;
  const uint8_t* nested_ = nullptr;
  const float *nested_absmax_ = nullptr, *nested_map_ = nullptr, *offset_ = nullptr;
};

}  // namespace bnb4
