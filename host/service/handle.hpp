// Conversion between the ABI's handles and LibTorch's types, which are only declared here. For the .cpp files of this
// folder.
#pragma once

#include <cstdint>
#include <utility>

#include "chassis/tensor.h"
#include "host/base/device_types.hpp"
#include "host/base/error.hpp"
#include "host/state/dtype.hpp"

namespace at {
class Tensor;
}
namespace c10 {
enum class DeviceType : int8_t;
enum class ScalarType : int8_t;
}

namespace chassis {

// A handle is an at::Tensor* on the heap, like LibTorch's own AtenTensorHandle.
inline at::Tensor& tensor_of(chassis_tensor_t handle) { return *reinterpret_cast<at::Tensor*>(handle); }
chassis_tensor_t new_handle(at::Tensor&& tensor);
void delete_handle(chassis_tensor_t handle) noexcept;

c10::ScalarType scalar_type(Dtype dtype);
// Throws for types that are not in the ABI.
Dtype dtype_of(c10::ScalarType type);

// LibTorch's type for a row of the table, found by its name.
c10::DeviceType torch_device_type(const DeviceSpec& spec);
// NULL for types that are not in the ABI.
const DeviceSpec* spec_of(c10::DeviceType type);

// Rethrows the current exception as an Error: out of memory with its exit code, LibTorch's messages without their C++
// backtrace. An Error passes unchanged.
[[noreturn]] void rethrow_as_error();

template <typename F>
decltype(auto) translate_errors(F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (...) {
    rethrow_as_error();
  }
}

}  // namespace chassis
