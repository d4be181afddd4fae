// Sizes, strides or the position of an element: up to eight numbers, stored inline so that boxes need no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace chassis {

class Shape {
 public:
  static constexpr int kMaxDims = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);
  static Shape filled(int ndim, int64_t value);

  int ndim() const { return ndim_; }
  int64_t operator[](int dim) const { return sizes_[static_cast<size_t>(dim)]; }
  int64_t& operator[](int dim) { return sizes_[static_cast<size_t>(dim)]; }
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + ndim_; }

  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxDims> sizes_{};
  int32_t ndim_ = 0;
};

// The number of elements. Throws a plugin error for a negative size, or if the product exceeds int64.
int64_t numel(const Shape& shape);

// The elements between neighbours along each dim; the last dim is the fastest.
Shape row_major_strides(const Shape& shape);

// "[128256, 4096]"
std::string text(const Shape& shape);

}  // namespace chassis
