// Feeds the text after the checksum to the parser of checkpoint manifests, with a correct checksum: the parser throws a
// storage error, or the result survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host/base/error.hpp"
#include "host/base/hash.hpp"
#include "host/checkpoint/checkpoint_manifest.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using chassis::CheckpointManifest;
  const std::string head = "{\n\"chassis_checkpoint\": 1,\n\"crc32c\": \"";
  const std::string rest(reinterpret_cast<const char*>(data), num_bytes);
  const std::string unsigned_text = head + "00000000\",\n" + rest;
  char checksum[9];
  std::snprintf(checksum, sizeof checksum, "%08x", chassis::crc32c(0, unsigned_text.data(), unsigned_text.size()));
  try {
    const auto manifest = CheckpointManifest::parse(head + checksum + "\",\n" + rest, "input");
    const std::string text = manifest.dump();
    if (CheckpointManifest::parse(text, "again").dump() != text) std::abort();
    manifest.extents();
  } catch (const chassis::Error& error) {
    if (error.code() != chassis::ExitCode::kStorage) std::abort();
  }
  return 0;
}
