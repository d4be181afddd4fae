// Handles, dtypes and errors of LibTorch.
#include "host/service/handle.hpp"

#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace chassis {

chassis_tensor_t new_handle(at::Tensor&& tensor) {
  return reinterpret_cast<chassis_tensor_t>(new at::Tensor(std::move(tensor)));
}

void delete_handle(chassis_tensor_t handle) noexcept { delete reinterpret_cast<at::Tensor*>(handle); }

c10::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return c10::ScalarType::Float;
    case Dtype::f64: return c10::ScalarType::Double;
    case Dtype::f16: return c10::ScalarType::Half;
    case Dtype::bf16: return c10::ScalarType::BFloat16;
    case Dtype::i64: return c10::ScalarType::Long;
    case Dtype::i32: return c10::ScalarType::Int;
    case Dtype::i16: return c10::ScalarType::Short;
    case Dtype::i8: return c10::ScalarType::Char;
    case Dtype::u8: return c10::ScalarType::Byte;
    case Dtype::bool8: return c10::ScalarType::Bool;
  }
  throw internal_error("dtype " + std::to_string(static_cast<uint32_t>(dtype)) + " is unknown");
}

Dtype dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float: return Dtype::f32;
    case c10::ScalarType::Double: return Dtype::f64;
    case c10::ScalarType::Half: return Dtype::f16;
    case c10::ScalarType::BFloat16: return Dtype::bf16;
    case c10::ScalarType::Long: return Dtype::i64;
    case c10::ScalarType::Int: return Dtype::i32;
    case c10::ScalarType::Short: return Dtype::i16;
    case c10::ScalarType::Char: return Dtype::i8;
    case c10::ScalarType::Byte: return Dtype::u8;
    case c10::ScalarType::Bool: return Dtype::bool8;
    default: throw internal_error(std::string("LibTorch's type ") + c10::toString(type) + " has no dtype in the ABI");
  }
}

c10::DeviceType torch_device_type(const DeviceSpec& spec) {
  static const auto* const types = [] {
    auto* all = new std::vector<c10::DeviceType>;
    for (const DeviceSpec& each : device_specs()) all->push_back(c10::Device(std::string(each.name)).type());
    return all;
  }();
  return (*types)[static_cast<size_t>(&spec - device_specs().data())];
}

const DeviceSpec* spec_of(c10::DeviceType type) {
  for (const DeviceSpec& spec : device_specs())
    if (torch_device_type(spec) == type) return &spec;
  return nullptr;
}

void rethrow_as_error() {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    throw Error(ExitCode::kOutOfMemory, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    throw internal_error(error.what_without_backtrace());
  }
}

}  // namespace chassis
