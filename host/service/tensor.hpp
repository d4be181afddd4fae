// A counted handle to a LibTorch tensor, without LibTorch's headers: what the host itself computes with.
// Only storage, views, copies and a few reductions live here; the arithmetic of models is in ops plugins.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chassis/tensor.h"
#include "host/state/dtype.hpp"

namespace chassis {

struct Device {
  enum class Type : uint32_t { kCpu = CHASSIS_DEVICE_CPU, kCuda = CHASSIS_DEVICE_CUDA, kMeta = CHASSIS_DEVICE_META };
  Type type = Type::kCpu;
  int index = 0;

  std::string text() const;  // "cpu", "cuda:0", "meta"
  Device host() const;       // where what is offloaded from it lies
  bool operator==(const Device&) const = default;
};

class Tensor {
 public:
  Tensor() = default;  // no tensor
  Tensor(const Tensor& other);
  Tensor(Tensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Tensor& operator=(Tensor other) noexcept;
  ~Tensor();

  // Takes over a handle that was handed out as owned; NULL gives no tensor.
  static Tensor adopt(chassis_tensor_t handle) noexcept;
  // A second handle to a borrowed tensor.
  static Tensor share(chassis_tensor_t borrowed);
  static Tensor empty(std::span<const int64_t> sizes, Dtype dtype, Device device = {});
  static Tensor zeros(std::span<const int64_t> sizes, Dtype dtype, Device device = {});
  // CPU memory of the caller's, which must outlive every handle; contiguous.
  static Tensor borrow(void* data, std::span<const int64_t> sizes, Dtype dtype);

  explicit operator bool() const noexcept { return handle_ != nullptr; }
  chassis_tensor_t handle() const noexcept { return handle_; }
  // Gives the handle away; this becomes no tensor.
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
  // Elements `strides` apart, the first at element `offset` of a one-dimensional tensor; all of them within it.
  Tensor strided(std::span<const int64_t> sizes, std::span<const int64_t> strides, int64_t offset) const;
  Tensor reinterpret(Dtype dtype) const;  // the same bytes of a one-dimensional tensor

  Tensor contiguous() const;
  Tensor clone() const;
  Tensor to(Dtype dtype) const;     // the same tensor if nothing changes
  Tensor to(Device device) const;   // likewise
  // Element by element, casting, across devices.
  void copy_from(const Tensor& source) const;
  void fill(double value) const;
  void zero() const;
  void add(const Tensor& other, double scale = 1.0) const;  // this += scale · other
  void multiply(double factor) const;

  double item() const;             // of one element
  double sum_of_squares() const;   // accumulated in fp64 on the CPU, fp32 blocks elsewhere; 0 if empty
  bool all_finite() const;

 private:
  explicit Tensor(chassis_tensor_t handle) noexcept : handle_(handle) {}
  chassis_tensor_t handle_ = nullptr;
};

}  // namespace chassis
