// The floating dtypes of weights, by the names that users and model configs give them.
#pragma once

#include <string>
#include <string_view>

#include "host/state/dtype.hpp"

namespace chassis {

// Reads "fp32" or "float32", "bf16" or "bfloat16", "fp16" or "float16". Throws a config error for any other text; the
// error begins with `what`, the place of the text.
Dtype float_dtype(std::string_view text, const std::string& what);
// "bfloat16", as in a config.json.
std::string_view float_dtype_name(Dtype dtype);

}  // namespace chassis
