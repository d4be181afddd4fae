// Element types and their names. The values are those of CHASSIS_DTYPE_* in the C ABI.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace chassis {

enum class Dtype : uint32_t { f32 = 1, f64, f16, bf16, i64, i32, i16, i8, u8, bool8 };

inline constexpr std::array<Dtype, 10> kAllDtypes = {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::i64,
                                                     Dtype::i32, Dtype::i16, Dtype::i8,  Dtype::u8,   Dtype::bool8};

// 0 for a value outside the enumeration.
constexpr int64_t size_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::f16:
    case Dtype::bf16:
    case Dtype::i16:
      return 2;
    case Dtype::i8:
    case Dtype::u8:
    case Dtype::bool8:
      return 1;
  }
  return 0;
}

constexpr bool is_float(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::f16 || dtype == Dtype::bf16;
}

// "f32", as in messages and in Chassis' own files.
constexpr std::string_view dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "f32";
    case Dtype::f64:
      return "f64";
    case Dtype::f16:
      return "f16";
    case Dtype::bf16:
      return "bf16";
    case Dtype::i64:
      return "i64";
    case Dtype::i32:
      return "i32";
    case Dtype::i16:
      return "i16";
    case Dtype::i8:
      return "i8";
    case Dtype::u8:
      return "u8";
    case Dtype::bool8:
      return "bool8";
  }
  return "unknown";
}

constexpr std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (Dtype dtype : kAllDtypes)
    if (dtype_name(dtype) == name) return dtype;
  return std::nullopt;
}

}  // namespace chassis
