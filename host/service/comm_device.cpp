// Streams and copies through LibTorch.
#include "host/service/comm_device.hpp"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "host/service/handle.hpp"

namespace chassis {

void* current_stream(Device device) {
  if (device.type != Device::Type::kCuda) return nullptr;
  return translate_errors([&] {
    const c10::Device where(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
    return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(where).native_handle();
  });
}

void copy_bytes(void* to, const void* from, uint64_t num_bytes, Device device) {
  if (to == from || num_bytes == 0) return;
  if (device.type != Device::Type::kCuda) {
    std::memcpy(to, from, num_bytes);
    return;
  }
  translate_errors([&] {
    const auto options = at::TensorOptions(at::kByte).device(c10::kCUDA, static_cast<c10::DeviceIndex>(device.index));
    const auto bytes = static_cast<int64_t>(num_bytes);
    at::from_blob(to, {bytes}, options).copy_(at::from_blob(const_cast<void*>(from), {bytes}, options), true);
  });
}

}  // namespace chassis
