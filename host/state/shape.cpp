// Checked arithmetic of shapes.
#include "host/state/shape.hpp"

#include "host/base/error.hpp"

namespace chassis {

Shape::Shape(std::span<const int64_t> sizes) : ndim_(static_cast<int32_t>(sizes.size())) {
  if (sizes.size() > static_cast<size_t>(kMaxDims))
    throw plugin_error("a tensor has " + std::to_string(sizes.size()) + " dims; at most " + std::to_string(kMaxDims) +
                       " are supported");
  for (size_t k = 0; k < sizes.size(); ++k) sizes_[k] = sizes[k];
}

Shape Shape::filled(int ndim, int64_t value) {
  CHASSIS_CHECK(ndim >= 0 && ndim <= kMaxDims, "number of dims out of range");
  Shape out;
  out.ndim_ = ndim;
  for (int k = 0; k < ndim; ++k) out[k] = value;
  return out;
}

int64_t numel(const Shape& shape) {
  int64_t product = 1;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) throw plugin_error("a shape has a negative size: " + text(shape));
    if (size == 0) empty = true;
  }
  if (empty) return 0;
  for (int64_t size : shape)
    if (__builtin_mul_overflow(product, size, &product))
      throw plugin_error("a shape has more than 2^63 elements: " + text(shape));
  return product;
}

Shape row_major_strides(const Shape& shape) {
  Shape strides = Shape::filled(shape.ndim(), 1);
  for (int k = shape.ndim() - 2; k >= 0; --k) strides[k] = strides[k + 1] * shape[k + 1];
  return strides;
}

std::string text(const Shape& shape) {
  std::string out = "[";
  for (int k = 0; k < shape.ndim(); ++k) {
    if (k > 0) out += ", ";
    out += std::to_string(shape[k]);
  }
  return out + "]";
}

}  // namespace chassis
