// Keys and values of the positions seen so far, or the values that they are computed from, for every unit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "host/graph/program.hpp"
#include "host/service/tensor.hpp"

namespace chassis {

// The cache of one row.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }
  // Call after all units ran.
  void advance(int64_t positions) { length_ += positions; }
  // Forgets all positions from `length` on.
  void truncate(int64_t length) { length_ = std::min(length_, length); }
  // Makes room for this many positions, and keeps those that are filled.
  void reserve(int64_t capacity);

  // Appends the value [1, T, …] of that unit and returns all positions, [1, length + T, …]; the result may be the
  // cache's own memory. Throws a config error if the capacity is exceeded.
  Tensor append(size_t unit, ValueId value, const Tensor& fresh);
  uint64_t bytes_per_position() const;  // of all values appended so far

 private:
  int64_t capacity_;
  int64_t length_ = 0;
  std::map<std::pair<size_t, ValueId>, Tensor> stored_;
};

// Those of the rows of a micro-batch, in their order. Rows may have different lengths. Empty: without caches.
using KeyValueCaches = std::span<KeyValueCache* const>;

}  // namespace chassis
