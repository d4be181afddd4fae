// Names of floating dtypes.
#include "host/state/float_dtype.hpp"

#include "host/base/error.hpp"

namespace chassis {
namespace {

constexpr struct {
  Dtype dtype;
  std::string_view name, long_name;
} kFloatDtypes[] = {
    {Dtype::f32, "fp32", "float32"}, {Dtype::bf16, "bf16", "bfloat16"}, {Dtype::f16, "fp16", "float16"}};

}  // namespace

Dtype float_dtype(std::string_view text, const std::string& what) {
  for (const auto& [dtype, name, long_name] : kFloatDtypes)
    if (text == name || text == long_name) return dtype;
  throw config_error(what + " is '" + std::string(text) + "'; it can be fp32, bf16 or fp16");
}

std::string_view float_dtype_name(Dtype dtype) {
  for (const auto& known : kFloatDtypes)
    if (known.dtype == dtype) return known.long_name;
  throw internal_error("weights of dtype " + std::string(dtype_name(dtype)));
}

}  // namespace chassis
