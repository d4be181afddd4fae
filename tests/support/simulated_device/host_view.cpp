// Views of device memory as tensors of the CPU.
#include "tests/support/simulated_device/host_view.hpp"

#include <ATen/Functions.h>

#include <utility>

#include "tests/support/simulated_device/memory.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {

at::Tensor HostViews::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  if (const auto found = views_.find(tensor.unsafeGetTensorImpl()); found != views_.end()) return found->second;
  const c10::StorageImpl* const own = tensor.storage().unsafeGetStorageImpl();
  auto place = storages_.find(own);
  if (place == storages_.end()) {
    const c10::Storage& storage = tensor.storage();
    c10::DataPtr memory(address_for_kernels(storage.data()), c10::kCPU);
    place = storages_.emplace(own, c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(memory)))
                .first;
    owners_[place->second.unsafeGetStorageImpl()] = tensor;
  }
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(place->second), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  views_.emplace(tensor.unsafeGetTensorImpl(), view);
  originals_.emplace(impl, tensor);
  return view;
}

at::Tensor HostViews::original(const at::Tensor& view) const {
  const auto found = originals_.find(view.unsafeGetTensorImpl());
  return found == originals_.end() ? at::Tensor() : found->second;
}

at::Tensor HostViews::sharing(const at::Tensor& view) const {
  const auto found = owners_.find(view.storage().unsafeGetStorageImpl());
  return found == owners_.end() ? at::Tensor() : found->second;
}

at::Tensor upload(const at::Tensor& values, c10::Device device) {
  const auto options = values.options().device(device).pinned_memory(false);
  const at::Tensor out = values.is_non_overlapping_and_dense()
                             ? at::empty_strided(values.sizes(), values.strides(), options)
                             : at::empty(values.sizes(), options);
  if (values.numel() > 0)
    current_stream(out.device().index()).run_or_enqueue([values, view = host_view(out)] { view.copy_(values); });
  return out;
}

}  // namespace simulated_device
