// Copies elements of a tensor's storage to and from bytes of another dtype; one memcpy where no cast is needed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/service/tensor.hpp"
#include "host/state/layout.hpp"

namespace chassis {

// `flat` is one-dimensional. Bytes are row-major, little-endian, of dtype `to` or `from`. Reading throws a numeric
// error if a finite value overflows `to`.
void read_elements(const Tensor& flat, int64_t start, int64_t count, Dtype to, std::byte* out);
void write_elements(const Tensor& flat, int64_t start, int64_t count, Dtype from, const std::byte* in);
// The same for a box of elements that lie `strides` apart; the bytes are the box in row-major order.
void read_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype to, std::byte* out);
void write_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype from, const std::byte* in);
// The address of element `start` if bytes of this dtype can be copied there without a cast; else NULL.
std::byte* direct_memory(const Tensor& flat, int64_t start, Dtype dtype);

}  // namespace chassis
