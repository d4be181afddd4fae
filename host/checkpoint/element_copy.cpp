// Copies with Tensor::copy_from, or with memcpy where dtype and device allow it.
#include "host/checkpoint/element_copy.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/service/strided.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and bytes are copied unchanged");

std::byte* direct_memory(const Tensor& flat, int64_t start, Dtype dtype) {
  if (flat.dtype() != dtype || flat.device().type != Device::Type::kCpu) return nullptr;
  return flat.data_as<std::byte>() + start * size_bytes(dtype);
}

namespace {

// Refuses a cast that turned a finite value into an infinity.
void expect_no_overflow(const Tensor& values, Dtype to, const std::byte* cast) {
  if ((to != Dtype::f16 && to != Dtype::bf16) || values.dtype() == to || !is_float(values.dtype())) return;
  const uint16_t largest = to == Dtype::f16 ? 0x7c00 : 0x7f80;  // the exponent of infinities and NaN
  const auto count = static_cast<size_t>(values.num_elements());
  const auto word = [&](size_t i) {
    uint16_t bits;
    std::memcpy(&bits, cast + i * sizeof bits, sizeof bits);
    return bits;
  };
  size_t num_largest = 0;
  for (size_t i = 0; i < count; ++i) num_largest += (word(i) & largest) == largest;
  if (num_largest == 0) return;
  const Tensor wide = Tensor::empty(values.sizes(), Dtype::f32);
  wide.copy_from(values);
  for (size_t i = 0; i < count; ++i)
    if (const float value = wide.data_as<float>()[i]; (word(i) & largest) == largest && std::isfinite(value))
      throw Error(ExitCode::kNumeric,
                  "the value " + std::to_string(value) + " overflows " + std::string(float_dtype_name(to)))
          .hint(to == Dtype::f16 ? "choose bf16 or fp32 as dtype" : "choose fp32 as dtype");
}

}  // namespace

void read_elements(const Tensor& flat, int64_t start, int64_t count, Dtype to, std::byte* out) {
  if (count == 0) return;
  if (const std::byte* memory = direct_memory(flat, start, to)) {
    std::memcpy(out, memory, static_cast<size_t>(count * size_bytes(to)));
    return;
  }
  const std::vector<int64_t> sizes = {count};
  const Tensor values = flat.narrow(0, start, count);
  Tensor::borrow(out, sizes, to).copy_from(values);
  expect_no_overflow(values, to, out);
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

void read_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype to, std::byte* out) {
  const Tensor values = strided(flat, sizes, view);
  Tensor::borrow(out, {sizes.begin(), sizes.end()}, to).copy_from(values);
  expect_no_overflow(values, to, out);
}

void write_strided(const Tensor& flat, const Shape& sizes, const StridedView& view, Dtype from, const std::byte* in) {
  strided(flat, sizes, view).copy_from(Tensor::borrow(const_cast<std::byte*>(in), {sizes.begin(), sizes.end()}, from));
}

}  // namespace chassis
