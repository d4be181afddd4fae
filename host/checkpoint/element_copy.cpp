#include "host/checkpoint/element_copy.hpp"

#include <bit>
#include <cstring>
#include <vector>

namespace chassis {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and bytes are copied as they are");

std::byte* direct_memory(const Tensor& flat, int64_t start, Dtype dtype) {
  if (flat.dtype() != dtype || flat.device().type != Device::Type::kCpu) return nullptr;
  return flat.data_as<std::byte>() + start * size_bytes(dtype);
}

void read_elements(const Tensor& flat, int64_t start, int64_t count, Dtype to, std::byte* out) {
  if (count == 0) return;
  if (const std::byte* memory = direct_memory(flat, start, to)) {
    std::memcpy(out, memory, static_cast<size_t>(count * size_bytes(to)));
    return;
  }
  const std::vector<int64_t> sizes = {count};
  Tensor::borrow(out, sizes, to).copy_from(flat.narrow(0, start, count));
}

void write_elements(const Tensor& flat, int64_t start, int64_t count, Dtype from, const std::byte* in) {
  if (count == 0) return;
  if (std::byte* memory = direct_memory(flat, start, from)) {
    std::memcpy(memory, in, static_cast<size_t>(count * size_bytes(from)));
    return;
  }
  const std::vector<int64_t> sizes = {count};
  flat.narrow(0, start, count).copy_from(Tensor::borrow(const_cast<std::byte*>(in), sizes, from));
}

}  // namespace chassis
