// The JSON text that bitsandbytes stores along with a 4-bit weight, as "<weight>.quant_state.bitsandbytes__nf4".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tables.hpp"

namespace bnb4 {

struct QuantState {
  Code code = Code::kNf4;
  int64_t block_size = 64;
  std::string dtype = "bfloat16";  // of the weight before quantization: bfloat16, float16 or float32
  std::vector<int64_t> shape;
  bool is_nested = false;
  float nested_offset = 0.0f;
  bool operator==(const QuantState&) const = default;
};

std::string_view code_name(Code code);  // "nf4"
bool is_block_size(int64_t size);       // a power of 2 from 32 to 4096

// Throws a Failure that names the key: missing, unknown or repeated keys, values of another type or outside the range
// of the format.
QuantState parse_quant_state(std::string_view json);
// The same bytes as Python's json.dumps of bitsandbytes' state.
std::string quant_state_text(const QuantState& state);

// Formats a float as Python does.
std::string python_float(double value);

}  // namespace bnb4
