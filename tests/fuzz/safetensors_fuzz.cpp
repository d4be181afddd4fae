// The input is a header: both scans must end in tensors that tile the file, or in a Defect. It is also read as
// an index.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "plugins/format/safetensors/huggingface.hpp"
#include "plugins/format/safetensors/native.hpp"

using namespace safetensors;

namespace {

template <class Scan>
void run(Scan&& scan, const std::string& path, const std::string& bytes, uint64_t data_bytes) {
  Source source;
  source.files = {{path, bytes.size() + data_bytes}};
  source.read = [&](uint32_t, uint64_t offset, uint64_t num_bytes, void* out) {
    if (offset > bytes.size() + data_bytes || num_bytes > bytes.size() + data_bytes - offset) std::abort();
    std::memset(out, 0, num_bytes);
    if (offset < bytes.size())
      std::memcpy(out, bytes.data() + offset, std::min<uint64_t>(num_bytes, bytes.size() - offset));
  };
  ScanSink sink;
  uint64_t total_bytes = 0;
  sink.tensor = [&](const FoundTensor& t) {
    if (t.offset > bytes.size() + data_bytes || t.num_bytes > bytes.size() + data_bytes - t.offset) std::abort();
    if (t.box_offset.size() != t.box_shape.size() || t.global_shape.size() != t.box_shape.size()) std::abort();
    total_bytes += t.num_bytes;
  };
  sink.metadata = [](std::string_view, std::string_view) {};
  sink.warning = [](std::string_view, std::string_view) {};
  try {
    scan(source, sink);
    if (total_bytes != data_bytes) std::abort();
  } catch (const Defect&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  // The first two bytes give the size of the data after the header; one of their bits is set if the input brings the
  // length of the header itself.
  const uint64_t data_bytes = data[0] | (data[1] & 0x7Fu) << 8;
  std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if ((data[1] & 0x80) == 0) {
    uint64_t n = bytes.size();
    bytes.insert(0, 8, '\0');
    for (int i = 0; i < 8; ++i, n >>= 8) bytes[static_cast<size_t>(i)] = static_cast<char>(n & 0xFF);
  }
  run(huggingface_scan, "model.safetensors", bytes, data_bytes);
  run(native_scan, "sharded/shard-00001-model-00001-of-00001.safetensors", bytes, data_bytes);
  Source index;
  const std::string text = bytes.substr(std::min<size_t>(8, bytes.size()));
  index.files = {{"model.safetensors.index.json", text.size()}};
  index.read = [&](uint32_t, uint64_t offset, uint64_t num_bytes, void* out) {
    std::memcpy(out, text.data() + offset, num_bytes);
  };
  ScanSink sink;
  sink.tensor = [](const FoundTensor&) {};
  sink.metadata = [](std::string_view, std::string_view) {};
  sink.warning = [](std::string_view, std::string_view) {};
  try {
    huggingface_scan(index, sink);
  } catch (const Defect&) {
  }
  return 0;
}
