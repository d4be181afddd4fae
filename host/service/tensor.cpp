// Tensors by LibTorch, and reductions in fixed blocks.
#include "host/service/tensor.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "host/service/handle.hpp"
#include "host/service/ledger.hpp"
#include "host/service/meta_memory.hpp"

namespace chassis {
namespace {

// The host computes without autograd. Dispatching below autograd's keys also saves their cost.
using NoAutograd = at::AutoDispatchBelowADInplaceOrView;

at::Device torch_device(Device device) {
  if (device.type == Device::Type::kCpu) return at::Device(at::kCPU);
  return at::Device(torch_device_type(device.spec()), static_cast<c10::DeviceIndex>(device.index));
}

at::IntArrayRef shape_of(std::span<const int64_t> sizes) { return {sizes.data(), sizes.size()}; }

// Blocks have a fixed size, so that sums do not depend on the number of threads.
constexpr int64_t kBlockElements = 1 << 16;

double block_sum_of_squares(const float* x, int64_t count) {
  std::array<double, 8> lanes{};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(x[i + lane]) * x[i + lane];
  for (; i < count; ++i) lanes[0] += static_cast<double>(x[i]) * x[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

bool block_finite(const float* x, int64_t count) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bad |= (bits & 0x7f800000u) == 0x7f800000u;
  }
  return bad == 0;
}

}  // namespace

const DeviceSpec& Device::spec() const {
  const auto id = static_cast<uint32_t>(type);
  if (const DeviceSpec* found = find_device_spec(id)) return *found;
  throw internal_error("device type " + std::to_string(id) + " is unknown");
}

std::string Device::text() const {
  const DeviceSpec* const found = find_device_spec(static_cast<uint32_t>(type));
  if (!found) return "unknown";
  return std::string(found->name) + (found->has_index ? ":" + std::to_string(index) : "");
}

Device Device::host() const { return type == Type::kMeta ? kMetaHost : Device{}; }

Tensor::Tensor(const Tensor& other) : handle_(nullptr) {
  if (other.handle_) handle_ = new_handle(at::Tensor(tensor_of(other.handle_)));
}

Tensor& Tensor::operator=(Tensor other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

Tensor::~Tensor() { reset(); }

Tensor Tensor::adopt(chassis_tensor_t handle) noexcept {
  ledger::remove(handle);
  return Tensor(handle);
}

Tensor Tensor::share(chassis_tensor_t borrowed) { return Tensor(new_handle(at::Tensor(tensor_of(borrowed)))); }

Tensor Tensor::empty(std::span<const int64_t> sizes, Dtype dtype, Device device) {
  return translate_errors([&] {
    NoAutograd guard;
    const MetaDeviceScope scope(device);
    return Tensor(new_handle(at::empty(shape_of(sizes), at::dtype(scalar_type(dtype)).device(torch_device(device)))));
  });
}

Tensor Tensor::zeros(std::span<const int64_t> sizes, Dtype dtype, Device device) {
  Tensor out = empty(sizes, dtype, device);
  out.zero();
  return out;
}

Tensor Tensor::borrow(void* data, std::span<const int64_t> sizes, Dtype dtype) {
  return translate_errors([&] {
    NoAutograd guard;
    return Tensor(new_handle(at::from_blob(data, shape_of(sizes), at::dtype(scalar_type(dtype)))));
  });
}

chassis_tensor_t Tensor::release() noexcept { return std::exchange(handle_, nullptr); }

void Tensor::reset() noexcept {
  if (handle_) delete_handle(std::exchange(handle_, nullptr));
}

std::vector<int64_t> Tensor::sizes() const { return tensor_of(handle_).sizes().vec(); }
int64_t Tensor::size(int dim) const { return tensor_of(handle_).size(dim); }
int64_t Tensor::num_dims() const { return tensor_of(handle_).dim(); }
int64_t Tensor::num_elements() const { return tensor_of(handle_).numel(); }
uint64_t Tensor::num_bytes() const { return tensor_of(handle_).nbytes(); }
Dtype Tensor::dtype() const { return dtype_of(tensor_of(handle_).scalar_type()); }
bool Tensor::is_contiguous() const { return tensor_of(handle_).is_contiguous(); }

Device Tensor::device() const {
  const at::Device device = tensor_of(handle_).device();
  if (const DeviceSpec* spec = spec_of(device.type())) return device_of(*spec, std::max<int>(0, device.index()));
  throw internal_error("device " + device.str() + " is not in the ABI");
}

void* Tensor::data() const {
  return translate_errors([&] { return tensor_of(handle_).mutable_data_ptr(); });
}

bool Tensor::shares_storage_with(const Tensor& other) const {
  return tensor_of(handle_).is_alias_of(tensor_of(other.handle_));
}

Tensor Tensor::narrow(int dim, int64_t start, int64_t length) const {
  return translate_errors([&] {
    NoAutograd guard;
    return Tensor(new_handle(tensor_of(handle_).narrow(dim, start, length)));
  });
}

Tensor Tensor::view(std::span<const int64_t> sizes) const {
  CHASSIS_CHECK(is_contiguous(), "view of a tensor that is not contiguous");
  return translate_errors([&] {
    NoAutograd guard;
    return Tensor(new_handle(tensor_of(handle_).view(shape_of(sizes))));
  });
}

Tensor Tensor::flat() const {
  const int64_t all[] = {num_elements()};
  return view(all);
}

Tensor Tensor::strided(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset) const {
  CHASSIS_CHECK(num_dims() == 1 && is_contiguous() && sizes.size() == strides.size(), "strided view of a flat tensor");
  int64_t last = offset;
  for (size_t k = 0; k < sizes.size(); ++k) last += std::max<int64_t>(0, sizes[k] - 1) * strides[k];
  CHASSIS_CHECK(offset >= 0 && last < num_elements(), "strided view beyond its tensor");
  return translate_errors([&] {
    NoAutograd guard;
    const at::Tensor& whole = tensor_of(handle_);
    return Tensor(
        new_handle(whole.as_strided(shape_of(sizes), shape_of(strides), whole.storage_offset() + offset)));
  });
}

Tensor Tensor::reinterpret(Dtype dtype) const {
  CHASSIS_CHECK(num_dims() == 1 && is_contiguous(), "the bytes of a flat tensor");
  return translate_errors([&] {
    NoAutograd guard;
    return Tensor(new_handle(tensor_of(handle_).view(scalar_type(dtype))));
  });
}

Tensor Tensor::contiguous() const {
  return translate_errors([&] {
    NoAutograd guard;
    const MetaDeviceScope scope(this->device());
    return Tensor(new_handle(tensor_of(handle_).contiguous()));
  });
}

Tensor Tensor::clone() const {
  return translate_errors([&] {
    NoAutograd guard;
    const MetaDeviceScope scope(this->device());
    return Tensor(new_handle(tensor_of(handle_).clone()));
  });
}

Tensor Tensor::to(Dtype dtype) const {
  return translate_errors([&] {
    NoAutograd guard;
    const MetaDeviceScope scope(this->device());
    return Tensor(new_handle(tensor_of(handle_).to(scalar_type(dtype))));
  });
}

Tensor Tensor::to(Device device) const {
  return translate_errors([&] {
    NoAutograd guard;
    const MetaDeviceScope scope(device);
    return Tensor(new_handle(tensor_of(handle_).to(torch_device(device))));
  });
}

void Tensor::copy_from(const Tensor& source) const {
  CHASSIS_CHECK(sizes() == source.sizes(), "copy between tensors of different shapes");
  translate_errors([&] {
    NoAutograd guard;
    tensor_of(handle_).copy_(tensor_of(source.handle_));
  });
}

void Tensor::fill(double value) const {
  translate_errors([&] {
    NoAutograd guard;
    tensor_of(handle_).fill_(value);
  });
}

void Tensor::zero() const {
  translate_errors([&] {
    NoAutograd guard;
    tensor_of(handle_).zero_();
  });
}

void Tensor::add(const Tensor& other, double scale) const {
  translate_errors([&] {
    NoAutograd guard;
    tensor_of(handle_).add_(tensor_of(other.handle_), scale);
  });
}

void Tensor::multiply(double factor) const {
  translate_errors([&] {
    NoAutograd guard;
    tensor_of(handle_).mul_(factor);
  });
}

void Tensor::raise_to(const Tensor& other) const {
  translate_errors([&] {
    NoAutograd guard;
    at::Tensor& own = tensor_of(handle_);
    at::maximum_out(own, own, tensor_of(other.handle_));
  });
}

double Tensor::item() const {
  return translate_errors([&] {
    NoAutograd guard;
    return tensor_of(handle_).item().toDouble();
  });
}

double Tensor::sum_of_squares() const {
  return translate_errors([&] {
    NoAutograd guard;
    const at::Tensor& tensor = tensor_of(handle_);
    const int64_t count = tensor.numel();
    if (count == 0) return 0.0;
    if (!tensor.is_cpu() || tensor.scalar_type() == at::kDouble) {
      const at::Tensor wide = tensor.is_cpu() ? tensor : tensor.to(at::kFloat);
      return wide.square().sum(at::kDouble).item().toDouble();
    }
    const at::Tensor plain = tensor.to(at::kFloat).contiguous();
    const float* x = plain.const_data_ptr<float>();
    const int64_t num_blocks = (count + kBlockElements - 1) / kBlockElements;
    std::vector<double> partial(static_cast<size_t>(num_blocks));
    at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        partial[b] = block_sum_of_squares(x + b * kBlockElements, std::min(kBlockElements, count - b * kBlockElements));
    });
    double sum = 0;
    for (double part : partial) sum += part;
    return sum;
  });
}

bool Tensor::all_finite() const {
  return translate_errors([&] {
    NoAutograd guard;
    const at::Tensor& tensor = tensor_of(handle_);
    if (!at::isFloatingType(tensor.scalar_type()) || tensor.numel() == 0) return true;
    if (!tensor.is_cpu() || tensor.scalar_type() != at::kFloat || !tensor.is_contiguous())
      return at::isfinite(tensor).all().item().toBool();
    const float* x = tensor.const_data_ptr<float>();
    std::atomic<bool> finite{true};
    at::parallel_for(0, tensor.numel(), kBlockElements, [&](int64_t begin, int64_t end) {
      if (!block_finite(x + begin, end - begin)) finite = false;
    });
    return finite.load();
  });
}

}  // namespace chassis
