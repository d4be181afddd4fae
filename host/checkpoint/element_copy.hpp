// Elements of a tensor's storage to and from bytes of another dtype; one memcpy where nothing is to be done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/service/tensor.hpp"

namespace chassis {

// `flat` is one-dimensional. Bytes are row-major, little-endian, of dtype `to` or `from`.
void read_elements(const Tensor& flat, int64_t start, int64_t count, Dtype to, std::byte* out);
void write_elements(const Tensor& flat, int64_t start, int64_t count, Dtype from, const std::byte* in);
// Where element `start` lies, if bytes of this dtype can be put there as they are; else NULL.
std::byte* direct_memory(const Tensor& flat, int64_t start, Dtype dtype);

}  // namespace chassis
