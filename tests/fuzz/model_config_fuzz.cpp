// Feeds text to the readers of config.json: the host's, then the model's. What is accepted must
// survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "chassis/guard.hpp"
#include "host/base/json.hpp"
#include "plugins/model/llama/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  llama::Config config;
  try {
    chassis::parse_json(text, "config.json");
    config = llama::parse_config(text);
  } catch (const chassis::Error&) {  // refused with a message, as it should be
    return 0;
  } catch (const chassis::Failure&) {
    return 0;
  }
  const llama::Config again = llama::parse_config(llama::write_config(config));
  if (again.hidden_size != config.hidden_size || again.rope.theta != config.rope.theta) std::abort();
  llama::inverse_frequencies(config.rope, config.head_dim);
  return 0;
}
