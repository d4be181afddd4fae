// Feeds text to the reader of configurations. What it accepts must survive being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "host/config/config.hpp"

namespace {

chassis::Config load(std::string_view text) {
  chassis::Config config = chassis::load_config_text(text, "input.toml", {});
  config.finish();
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  if (text.find("extends") != std::string_view::npos) return 0;  // other files are not part of the input
  std::string written;
  try {
    written = load(text).resolved_toml();
  } catch (const chassis::Error&) {  // refused with a message, as it should be
    return 0;
  }
  if (!load(written).same_values(load(text))) std::abort();
  return 0;
}
