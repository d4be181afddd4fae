// Feeds bytes to the reader of plugin files, and text to the parser of manifests.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "host/base/error.hpp"
#include "host/plugin/manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), num_bytes);
  for (const auto read : {+[](std::string_view b) { chassis::read_plugin_bytes(b, "input"); },
                          +[](std::string_view b) { chassis::read_elf_symbols(chassis::elf_source(b), "input"); },
                          +[](std::string_view b) { chassis::parse_manifest(b, "input"); }}) {
    try {
      read(bytes);
    } catch (const chassis::Error&) {  // refused with a message, as it should be
    }
  }
  return 0;
}
