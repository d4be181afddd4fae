// Feeds text to the readers of config.json: the host's, then the model's. What is accepted must
// survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "chassis/guard.hpp"
#include "host/base/json.hpp"
#include "plugins/model/decoder/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  static const decoder::Family family = {
      .name = "phi3",
      .model_type = "llama",
      .architectures = {"LlamaForCausalLM"},
      .ropes = {.types = {"default", "linear", "llama3", "longrope"}, .partial = true}};
  decoder::Config config;
  try {
    chassis::parse_json(text, "config.json");
    config = decoder::parse_config(family, text);
  } catch (const chassis::Error&) {  // refused with a message, as it should be
    return 0;
  } catch (const chassis::Failure&) {
    return 0;
  }
  const decoder::Config again = decoder::parse_config(family, decoder::write_config(family, config));
  if (again.hidden_size != config.hidden_size || again.rope.theta != config.rope.theta) std::abort();
  decoder::rope_attributes(config.rope, config.head_dim, config.max_position_embeddings);
  return 0;
}
