// Tensors of the CPU whose bytes are those of tensors of a device. Only kernels and copies make them.
#pragma once

#include <ATen/core/TensorBody.h>

#include <unordered_map>

namespace simulated_device {

// The views of one call: tensors that are the same, or share a storage, have views that are the same, or share one.
// The views own nothing: memory that the caller frees is not used again before the tasks of its stream have ended.
class HostViews {
 public:
  // Tensors of other devices, and undefined ones, stay as they are.
  at::Tensor of(const at::Tensor& tensor);
  // The tensor whose view this is; undefined if it is none.
  at::Tensor original(const at::Tensor& view) const;
  // A tensor whose storage has a view with this storage; undefined if there is none.
  at::Tensor sharing(const at::Tensor& view) const;

 private:
  std::unordered_map<const c10::TensorImpl*, at::Tensor> views_;      // by the original
  std::unordered_map<const c10::TensorImpl*, at::Tensor> originals_;  // by the view
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> owners_;  // by the storage of the view
};

inline at::Tensor host_view(const at::Tensor& tensor) { return HostViews().of(tensor); }

// A tensor on the device with these values, which are copied there by the current stream.
at::Tensor upload(const at::Tensor& values, c10::Device device);

}  // namespace simulated_device
