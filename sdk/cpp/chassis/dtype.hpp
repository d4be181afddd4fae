// Names, sizes and C++ types of the dtypes that cross the boundary.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "chassis/namespace.hpp"
#include "chassis/tensor.h"

CHASSIS_SDK_BEGIN

constexpr std::string_view dtype_name(uint32_t dtype) noexcept {
  switch (dtype) {
    case CHASSIS_DTYPE_F32:
      return "float32";
    case CHASSIS_DTYPE_F64:
      return "float64";
    case CHASSIS_DTYPE_F16:
      return "float16";
    case CHASSIS_DTYPE_BF16:
      return "bfloat16";
    case CHASSIS_DTYPE_I64:
      return "int64";
    case CHASSIS_DTYPE_I32:
      return "int32";
    case CHASSIS_DTYPE_I16:
      return "int16";
    case CHASSIS_DTYPE_I8:
      return "int8";
    case CHASSIS_DTYPE_U8:
      return "uint8";
    case CHASSIS_DTYPE_BOOL:
      return "bool";
  }
  return "unknown dtype";
}

// 0 for an unknown dtype.
constexpr uint32_t dtype_bytes(uint32_t dtype) noexcept {
  switch (dtype) {
    case CHASSIS_DTYPE_F64:
    case CHASSIS_DTYPE_I64:
      return 8;
    case CHASSIS_DTYPE_F32:
    case CHASSIS_DTYPE_I32:
      return 4;
    case CHASSIS_DTYPE_F16:
    case CHASSIS_DTYPE_BF16:
    case CHASSIS_DTYPE_I16:
      return 2;
    case CHASSIS_DTYPE_I8:
    case CHASSIS_DTYPE_U8:
    case CHASSIS_DTYPE_BOOL:
      return 1;
  }
  return 0;
}

// True if elements of this dtype may be read as T. Both 16-bit floats are read as uint16_t.
template <typename T>
constexpr bool dtype_is(uint32_t dtype) noexcept {
  using Element = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Element, float>) return dtype == CHASSIS_DTYPE_F32;
  if constexpr (std::is_same_v<Element, double>) return dtype == CHASSIS_DTYPE_F64;
  if constexpr (std::is_same_v<Element, uint16_t>) return dtype == CHASSIS_DTYPE_F16 || dtype == CHASSIS_DTYPE_BF16;
  if constexpr (std::is_same_v<Element, int64_t>) return dtype == CHASSIS_DTYPE_I64;
  if constexpr (std::is_same_v<Element, int32_t>) return dtype == CHASSIS_DTYPE_I32;
  if constexpr (std::is_same_v<Element, int16_t>) return dtype == CHASSIS_DTYPE_I16;
  if constexpr (std::is_same_v<Element, int8_t>) return dtype == CHASSIS_DTYPE_I8;
  if constexpr (std::is_same_v<Element, uint8_t>) return dtype == CHASSIS_DTYPE_U8;
  if constexpr (std::is_same_v<Element, bool>) return dtype == CHASSIS_DTYPE_BOOL;
  return false;
}

CHASSIS_SDK_END
