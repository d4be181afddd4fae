// Tensors: BorrowedTensor is a view of a tensor owned elsewhere, Tensor owns a handle.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "chassis/dtype.hpp"
#include "chassis/host.hpp"

CHASSIS_SDK_BEGIN

class Tensor;

// Valid while the handle lives. Copying is cheap. An absent tensor converts to false.
class BorrowedTensor {
 public:
  BorrowedTensor() = default;
  BorrowedTensor(const Host& host, CHASSIS_BORROWED chassis_tensor_t handle) : host_(&host), handle_(handle) {
    view_.struct_size = sizeof view_;
    if (handle_ != nullptr) host.service<chassis_tensor_service_t>().view(handle_, &view_);
  }

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  chassis_tensor_t handle() const noexcept { return handle_; }
  const chassis_tensor_view_t& view() const noexcept { return view_; }

  uint32_t dtype() const noexcept { return view_.dtype; }
  uint32_t device_type() const noexcept { return view_.device_type; }
  bool is_cpu() const noexcept { return view_.device_type == CHASSIS_DEVICE_CPU; }
  bool is_contiguous() const noexcept { return view_.is_contiguous != 0; }
  int64_t num_dims() const noexcept { return view_.num_dims; }
  int64_t num_elements() const noexcept { return view_.num_elements; }
  std::span<const int64_t> sizes() const noexcept { return {view_.sizes, view_.num_dims}; }
  // dim -1 is the last.
  int64_t size(int dim) const { return view_.sizes[index(dim)]; }
  int64_t stride(int dim) const { return view_.strides[index(dim)]; }

  // The first element, which must be on the CPU and of this type.
  template <typename T>
  T* data() const {
    T* const memory = address<T>();
    if (!is_cpu()) throw Failure(CHASSIS_INTERNAL, "a kernel read device memory on the CPU");
    return memory;
  }
  // The same for memory that may be on a device, which only code of that device reads.
  template <typename T>
  T* address() const {
    if (!dtype_is<T>(view_.dtype)) {
      throw Failure(CHASSIS_INTERNAL, "a kernel read a tensor of ", dtype_name(view_.dtype), " as another type");
    }
    return static_cast<T*>(view_.data);
  }

  // A second handle to the same tensor.
  Tensor retain() const;

 protected:
  size_t index(int dim) const {
    const int num = static_cast<int>(view_.num_dims);
    if (dim < -num || dim >= num) throw Failure(CHASSIS_INTERNAL, "dim ", dim, " of a tensor with ", num, " dims");
    return static_cast<size_t>(dim < 0 ? dim + num : dim);
  }

  const Host* host_ = nullptr;
  chassis_tensor_t handle_ = nullptr;
  chassis_tensor_view_t view_{};
};

class Tensor : public BorrowedTensor {
 public:
  Tensor() = default;
  // Takes over a handle; NULL gives an absent tensor.
  Tensor(const Host& host, CHASSIS_STOLEN chassis_tensor_t handle) : BorrowedTensor(host, handle) {}
  Tensor(Tensor&& other) noexcept : BorrowedTensor(other) { other.handle_ = nullptr; }
  Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      reset();
      BorrowedTensor::operator=(other);
      other.handle_ = nullptr;
    }
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  // Uninitialised, contiguous. Throws RESOURCE_EXHAUSTED.
  static Tensor create(const Host& host, uint32_t dtype, std::span<const int64_t> sizes,
                       uint32_t device_type = CHASSIS_DEVICE_CPU, int32_t device_index = 0) {
    const auto& service = host.service<chassis_tensor_service_t>();
    chassis_tensor_t handle = nullptr;
    host.check(service.create(&service, dtype, device_type, device_index, static_cast<uint32_t>(sizes.size()),
                              sizes.data(), &handle));
    return Tensor(host, handle);
  }
  static Tensor create(const Host& host, uint32_t dtype, std::initializer_list<int64_t> sizes) {
    return create(host, dtype, std::span(sizes.begin(), sizes.size()));
  }
  // Creates a tensor of the same dtype, shape and device.
  static Tensor create_like(const Host& host, const BorrowedTensor& other) {
    return create(host, other.dtype(), other.sizes(), other.device_type(), other.view().device_index);
  }

  // Gives up the handle to the caller.
  CHASSIS_OWNED chassis_tensor_t release() noexcept { return std::exchange(handle_, nullptr); }

  void reset() noexcept {
    // The analyzer takes the handle of a moved optional for garbage.
    if (handle_ == nullptr) return;  // NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult)
    const auto& service = host_->service<chassis_tensor_service_t>();
    service.release(&service, std::exchange(handle_, nullptr));
  }
};

inline Tensor BorrowedTensor::retain() const {
  const auto& service = host_->service<chassis_tensor_service_t>();
  chassis_tensor_t handle = nullptr;
  host_->check(service.retain(&service, handle_, &handle));
  return Tensor(*host_, handle);
}

CHASSIS_SDK_END
