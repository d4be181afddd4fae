// Operators with kernels of their own: memory, copies, views, and products that only CUDA has.
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <utility>

#include "tests/support/simulated_device/host_view.hpp"
#include "tests/support/simulated_device/memory.hpp"
#include "tests/support/simulated_device/settings.hpp"
#include "tests/support/simulated_device/stream.hpp"

namespace simulated_device {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

Stream& stream_of(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

template <typename Function>
void enqueue(Stream& stream, Function&& function, Stream::Delay delay) {
  stream.enqueue_work(
      [function = std::forward<Function>(function)]() mutable {
        const at::AutoDispatchBelowADInplaceOrView below_autograd;
        function();
      },
      delay);
}

// Between two devices: the copy begins after the work of both, and the work of both continues after it.
void copy_between(const at::Tensor& to, const at::Tensor& from) {
  Stream &source = stream_of(from), &target = stream_of(to);
  Event ready, done;
  ready.record(target);
  ready.block(source);
  enqueue(
      source, [to = host_view(to), from = host_view(from)] { to.copy_(from); }, Stream::Delay::kAlways);
  done.record(source);
  done.block(target);
}

// The host waits for copies from and to pageable memory. Those of page-locked memory only follow the stream.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  if (self.is_cuda() && source.is_cuda()) {
    if (self.device() != source.device()) {
      copy_between(self, source);
      return self;
    }
    HostViews views;
    enqueue(
        stream_of(self), [to = views.of(self), from = views.of(source)] { to.copy_(from); }, Stream::Delay::kSometimes);
    return self;
  }
  const at::Tensor& here = self.is_cuda() ? source : self;
  Stream& stream = stream_of(self.is_cuda() ? self : source);
  const bool is_async = non_blocking && is_pinned(here.storage().data());
  enqueue(
      stream, [to = host_view(self), from = host_view(source)] { to.copy_(from); }, Stream::Delay::kAlways);
  if (!is_async && (self.is_cuda() || !fault().has_begun("host_wait"))) stream.wait();
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  if (!fault().has_begun("host_wait")) stream_of(self).wait();
  return at::_local_scalar_dense(host_view(self));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const uint64_t needed =
      at::detail::computeStorageNbytesContiguous(size, self.element_size(), static_cast<size_t>(self.storage_offset()));
  if (needed > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr memory = device_allocator().allocate(needed);
    if (storage->nbytes() > 0)
      enqueue(
          stream_of(self),
          [from = address_for_kernels(storage->data()), to = address_for_kernels(memory.get()),
           size = storage->nbytes()] { std::memcpy(to, from, size); },
          Stream::Delay::kSometimes);
    storage->set_data_ptr_noswap(std::move(memory));
    storage->set_nbytes(needed);
  }
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage_(at::Tensor& self, c10::Storage storage, int64_t offset, at::IntArrayRef size,
                         at::IntArrayRef stride) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.data() != nullptr && !stride.empty()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  return self;
}

void record_stream(at::Tensor& self, at::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

// Products of 16-bit matrices with results in fp32.
at::Tensor& mm_dtype_out(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == dtype, "out_dtype must be the same as the dtype of the provided out tensor");
  HostViews views;
  enqueue(
      stream_of(self),
      [a = views.of(self), b = views.of(mat2), out = views.of(out), dtype]() mutable {
        at::mm_out(out, a.to(dtype), b.to(dtype));
      },
      Stream::Delay::kSometimes);
  return out;
}

at::Tensor mm_dtype(const at::Tensor& self, const at::Tensor& mat2, at::ScalarType dtype) {
  at::Tensor out = at::empty({self.size(0), mat2.size(1)}, self.options().dtype(dtype));
  return mm_dtype_out(self, mat2, dtype, out);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_storage_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("record_stream", &record_stream);
  library.impl("mm.dtype", &mm_dtype);
  library.impl("mm.dtype_out", &mm_dtype_out);
}

}  // namespace
}  // namespace simulated_device
