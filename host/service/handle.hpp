// Between handles of the ABI and LibTorch's types, which are only named here; used by the .cpp files of this folder.
#pragma once

#include <cstdint>
#include <utility>

#include "chassis/tensor.h"
#include "host/base/error.hpp"
#include "host/state/dtype.hpp"

namespace at {
class Tensor;
}
namespace c10 {
enum class ScalarType : int8_t;
}

namespace chassis {

// A handle is a heap at::Tensor*, as LibTorch's own AtenTensorHandle.
inline at::Tensor& tensor_of(chassis_tensor_t handle) { return *reinterpret_cast<at::Tensor*>(handle); }
chassis_tensor_t new_handle(at::Tensor&& tensor);
void delete_handle(chassis_tensor_t handle) noexcept;

c10::ScalarType scalar_type(Dtype dtype);
// Throws for types that the ABI has no word for.
Dtype dtype_of(c10::ScalarType type);

// Turns the exception in flight into an Error: out of memory with its exit code, LibTorch's messages without their
// C++ backtrace. Errors of ours pass unchanged.
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
