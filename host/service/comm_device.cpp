// Streams and copies through LibTorch.
#include "host/service/comm_device.hpp"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "host/service/handle.hpp"

namespace chassis {

void* current_stream(Device device) {
  const DeviceSpec& spec = device.spec();
  if (!spec.has_streams) return nullptr;
  return translate_errors([&] {
    const c10::Device where(torch_device_type(spec), static_cast<c10::DeviceIndex>(device.index));
    return c10::impl::VirtualGuardImpl(where.type()).getStream(where).native_handle();
  });
}

void copy_bytes(void* to, const void* from, uint64_t num_bytes, Device device) {
  if (to == from || num_bytes == 0) return;
  const DeviceSpec& spec = device.spec();
  if (!spec.has_streams) {
    std::memcpy(to, from, num_bytes);
    return;
  }
  translate_errors([&] {
    const c10::Device where(torch_device_type(spec), static_cast<c10::DeviceIndex>(device.index));
    const auto options = at::TensorOptions(at::kByte).device(where);
    const auto bytes = static_cast<int64_t>(num_bytes);
    at::from_blob(to, {bytes}, options).copy_(at::from_blob(const_cast<void*>(from), {bytes}, options), true);
  });
}

}  // namespace chassis
