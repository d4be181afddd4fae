// Feeds text to the reader of quant_state. What is accepted must survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "chassis/guard.hpp"
#include "plugins/quant/bnb4/quant_state.hpp"
#include "plugins/quant/bnb4/settings.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  try {
    const bnb4::QuantState state = bnb4::parse_quant_state(text);
    if (bnb4::parse_quant_state(bnb4::quant_state_text(state)) != state) std::abort();
  } catch (const chassis::Failure&) {  // refused with a message, as it should be
  }
  try {
    bnb4::parse_quantization_config(text);
  } catch (const chassis::Failure&) {
  }
  return 0;
}
