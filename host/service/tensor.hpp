// A reference-counted handle to a LibTorch tensor, without LibTorch's headers. It has storage, views, copies and a few
// reductions, which the host itself needs; the arithmetic of models is in ops plugins.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/tensor.h"
#include "host/service/tensor_device.hpp"
#include "host/state/dtype.hpp"

namespace chassis {

class Tensor {
 public:
  Tensor() = default;  // holds no tensor
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Tensor& operator=(Tensor other) noexcept;
  ~Tensor();

  // Takes ownership of a handle; NULL gives no tensor.
  static Tensor adopt(chassis_tensor_t handle) noexcept;
  // A second handle to a borrowed tensor.
  static Tensor share(chassis_tensor_t borrowed);
  static Tensor empty(std::span<const int64_t> sizes, Dtype dtype, Device device = {});
  static Tensor zeros(std::span<const int64_t> sizes, Dtype dtype, Device device = {});
  // A contiguous tensor in the caller's CPU memory, which must outlive every handle.
  static Tensor borrow(void* data, std::span<const int64_t> sizes, Dtype dtype);

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  chassis_tensor_t handle() const noexcept { return handle_; }
  // Gives up ownership of the handle; this object then holds no tensor.
  chassis_tensor_t release() noexcept;
  void reset() noexcept;

  std::vector<int64_t> sizes() const;
  int64_t size(int dim) const;
  int64_t num_dims() const;
  int64_t num_elements() const;
  uint64_t num_bytes() const;
  Dtype dtype() const;
  Device device() const;
  bool is_contiguous() const;
  void* data() const;  // first element
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data());
  }
  bool shares_storage_with(const Tensor& other) const;

  // Views of the same storage.
  Tensor narrow(int dim, int64_t start, int64_t length) const;
  Tensor view(std::span<const int64_t> sizes) const;  // contiguous tensors only
  Tensor flat() const;                                // [num_elements]
  // Elements of a one-dimensional tensor, `strides` apart, the first at `offset`. Throws if any is outside the tensor.
  Tensor strided(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset) const;
  Tensor reinterpret(Dtype dtype) const;  // the same bytes of a one-dimensional tensor

  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(Dtype dtype) const;     // shares storage if nothing changes
  Tensor to(Device device) const;   // shares storage if nothing changes
  // Casts, and copies between devices. Shapes must be equal.
  void copy_from(const Tensor& source) const;
  void fill(double value) const;
  void zero() const;
  void add(const Tensor& other, double scale = 1.0) const;  // this += scale · other
  void multiply(double factor) const;
  void raise_to(const Tensor& other) const;  // this = max(this, other), element by element; NaN if either is

  double item() const;             // the value of a tensor with one element
  double sum_of_squares() const;   // accumulated in fp64 on the CPU, fp32 blocks elsewhere; 0 if empty
  bool all_finite() const;

 private:
  explicit Tensor(chassis_tensor_t handle) noexcept : handle_(handle) {}
  chassis_tensor_t handle_ = nullptr;
};

}  // namespace chassis
