// A file of the reference writer is read, and written again with the same bytes.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "chassis/tensor.h"
#include "memory_source.hpp"
#include "plugins/format/safetensors/huggingface.hpp"

namespace safetensors {
namespace {

std::string reference() {
  std::ifstream file(CHASSIS_TEST_SOURCE_DIR "/tests/golden/safetensors/reference.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Request same_tensors() {
  Request r;
  r.whole("model.embed_tokens.weight", CHASSIS_DTYPE_BF16, {5, 4});
  r.whole("model.layers.0.self_attn.q_proj.weight", CHASSIS_DTYPE_F32, {3, 2});
  r.whole("model.layers.0.mlp.bias", CHASSIS_DTYPE_F16, {7}).whole("step", CHASSIS_DTYPE_I64, {});
  r.whole("empty", CHASSIS_DTYPE_F32, {0, 3})
      .whole("mask", CHASSIS_DTYPE_BOOL, {3})
      .whole("bytes", CHASSIS_DTYPE_U8, {5});
  r.whole("counts", CHASSIS_DTYPE_I32, {2})
      .whole("short", CHASSIS_DTYPE_I16, {1})
      .whole("signed", CHASSIS_DTYPE_I8, {2});
  return std::move(r.whole("double", CHASSIS_DTYPE_F64, {2}).whole("na\u00efve \"name\"", CHASSIS_DTYPE_F32, {1}));
}

TEST(ReferenceFile, IsRead) {
  const Files files = {{"model.safetensors", reference()}};
  const Scanned found = scan(huggingface_scan, files);
  const Request expected = same_tensors();
  ASSERT_EQ(found.boxes.size(), expected.raw.size());
  for (size_t i = 0; i < expected.raw.size(); ++i) {
    const auto& box = found.find(expected.tensors[i].name);
    EXPECT_EQ(box.dtype, expected.raw[i].dtype);
    EXPECT_EQ(box.shape, expected.tensors[i].shape);
    for (uint64_t at = 0; at < box.num_bytes; ++at) {
      ASSERT_EQ(files.at("model.safetensors")[box.at + at], static_cast<char>((7 * at + 3) % 64)) << box.name;
    }
  }
}

TEST(ReferenceFile, IsWrittenByteForByte) {
  const Request request = same_tensors();
  const SaveLayout layout = huggingface_layout(request.get());
  std::string bytes = layout.files.at(0).header;
  bytes.resize(layout.files[0].num_bytes);
  for (size_t i = 0; i < layout.places.size(); ++i) {
    for (uint64_t at = 0; at < request.raw[i].num_bytes; ++at) {
      bytes[layout.places[i].offset + at] = static_cast<char>((7 * at + 3) % 64);
    }
  }
  EXPECT_TRUE(bytes == reference());
}

}  // namespace
}  // namespace safetensors
