// Copies with Tensor::copy_from, or with memcpy where dtype and device allow it.
#include "host/checkpoint/element_copy.hpp"

#include <bit>
#include <cstring>
#include <vector>

namespace chassis {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and bytes are copied unchanged");

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

namespace {

std::span<const int64_t> numbers(const Shape& shape) { return {shape.begin(), shape.end()}; }

Tensor strided(const Tensor& flat, const Shape& sizes, const StridedView& view) {
  return flat.strided(numbers(sizes), numbers(view.strides), view.offset);
}

}  // namespace

void read_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype to, std::byte* out) {
  Tensor::borrow(out, numbers(sizes), to).copy_from(strided(flat, sizes, view));
}

void write_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype from, const std::byte* in) {
  strided(flat, sizes, view).copy_from(Tensor::borrow(const_cast<std::byte*>(in), numbers(sizes), from));
}

}  // namespace chassis
