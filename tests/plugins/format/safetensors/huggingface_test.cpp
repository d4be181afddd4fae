// The Hugging Face directory: splitting, the index, and inconsistent directories.
#include "plugins/format/safetensors/huggingface.hpp"

#include <gtest/gtest.h>

#include "chassis/tensor.h"
#include "memory_source.hpp"

namespace safetensors {
namespace {

constexpr char kIndex[] = "model.safetensors.index.json";

Files write_model(const Request& request, uint64_t max_file_bytes = 0) {
  return write(huggingface_layout(request.get(max_file_bytes)), request);
}
std::string scan_refusal(const Files& files) {
  return defect_of([&] { scan(huggingface_scan, files); });
}
std::string layout_refusal(const Request& request) {
  return defect_of([&] { huggingface_layout(request.get()); });
}
Request four_tensors() {
  Request r;
  r.whole("d", CHASSIS_DTYPE_F32, {4}).whole("c", CHASSIS_DTYPE_F32, {4}).whole("b", CHASSIS_DTYPE_BF16, {2, 4});
  return std::move(r.whole("a", CHASSIS_DTYPE_U8, {3}));
}

TEST(HuggingFaceLayout, PutsASmallModelIntoOneFileWithoutIndex) {
  const Files files = write_model(four_tensors());
  ASSERT_EQ(files.size(), 1u);
  const Scanned found = scan(huggingface_scan, files);
  ASSERT_EQ(found.boxes.size(), 4u);
  EXPECT_EQ(found.metadata.at("format"), "pt");
  const auto& b = found.find("b");
  EXPECT_EQ(b.dtype, CHASSIS_DTYPE_BF16);
  EXPECT_EQ(b.global_shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(files.at("model.safetensors").substr(b.at, b.num_bytes), std::string(16, '\3'));
  // The reference writer's order within a file: wide dtypes first, then by name.
  EXPECT_EQ(found.boxes[0].name, "c");
  EXPECT_EQ(found.boxes[1].name, "d");
  EXPECT_EQ(found.boxes[3].name, "a");
}

TEST(HuggingFaceLayout, SplitsInOrderAndWritesASortedIndex) {
  const Files files = write_model(four_tensors(), 32);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(
      files.at(kIndex),
      "{\n  \"metadata\": {\n    \"total_size\": 51\n  },\n  \"weight_map\": {\n"
      "    \"a\": \"model-00002-of-00002.safetensors\",\n    \"b\": \"model-00002-of-00002.safetensors\",\n"
      "    \"c\": \"model-00001-of-00002.safetensors\",\n    \"d\": \"model-00001-of-00002.safetensors\"\n  }\n}\n");
  const Scanned found = scan(huggingface_scan, files);
  EXPECT_EQ(found.boxes.size(), 4u);
  EXPECT_TRUE(found.warnings.empty());
}

TEST(HuggingFaceLayout, GivesALargeTensorItsOwnFile) {
  Request r;
  r.whole("a", CHASSIS_DTYPE_U8, {1}).whole("b", CHASSIS_DTYPE_U8, {100}).whole("c", CHASSIS_DTYPE_U8, {1});
  EXPECT_EQ(huggingface_layout(r.get(10)).files.size(), 3u);
}

TEST(HuggingFaceLayout, RefusesPartsAndBadNames) {
  Request part;
  part.box("t", CHASSIS_DTYPE_F32, {4}, {0}, {2});
  EXPECT_EQ(layout_refusal(part), "a part of tensor 't', but files of this format hold whole tensors");
  Request twice;
  twice.whole("t", CHASSIS_DTYPE_F32, {4}).whole("t", CHASSIS_DTYPE_F32, {4});
  EXPECT_EQ(layout_refusal(twice), "tensor 't' appears twice");
  Request name;
  name.whole("a/../b", CHASSIS_DTYPE_F32, {4});
  EXPECT_EQ(layout_refusal(name), "the name 'a/../b' looks like a path");
  Request reserved;
  reserved.whole("__metadata__", CHASSIS_DTYPE_F32, {4});
  EXPECT_EQ(layout_refusal(reserved), "a tensor is called '__metadata__'");
}

TEST(HuggingFaceScan, FindsAValueHeadNextToTheModel) {
  for (const uint64_t max_file_bytes : {0, 32}) {
    Files files = write_model(four_tensors(), max_file_bytes);
    files["value_head.safetensors"] = value_head_file();
    const Scanned found = scan(huggingface_scan, files);
    EXPECT_EQ(found.boxes.size(), 6u);
    EXPECT_EQ(found.find("v_head.summary.weight").global_shape, (std::vector<int64_t>{1, 4}));
  }
}

TEST(HuggingFaceScan, RefusesAStaleIndex) {
  Request old_model = four_tensors();
  Files files = write_model(old_model, 32);
  const Files fresh = files;

  files.erase("model-00002-of-00002.safetensors");
  EXPECT_EQ(scan_refusal(files),
            "model.safetensors.index.json names the file 'model-00002-of-00002.safetensors', which does not exist");

  files = fresh;
  std::swap(files["model-00001-of-00002.safetensors"], files["model-00002-of-00002.safetensors"]);
  EXPECT_NE(scan_refusal(files).find("the index is stale"), std::string::npos);

  Request more = four_tensors();
  more.whole("e", CHASSIS_DTYPE_U8, {1});
  files = fresh;
  files["model-00002-of-00002.safetensors"] = write_model(more, 32).at("model-00002-of-00002.safetensors");
  EXPECT_EQ(scan_refusal(files),
            "model-00002-of-00002.safetensors holds the tensor 'e', which model.safetensors.index.json does not name: "
            "the index is stale");

  files = write_model(more, 32);
  files["model-00002-of-00002.safetensors"] = fresh.at("model-00002-of-00002.safetensors");
  EXPECT_EQ(scan_refusal(files),
            "model.safetensors.index.json places the tensor 'e' in 'model-00002-of-00002.safetensors', which does not "
            "hold it: the index is stale");

  files = fresh;
  files["model.safetensors"] = write_model(old_model).at("model.safetensors");
  EXPECT_NE(scan_refusal(files).find("both model.safetensors and model.safetensors.index.json"), std::string::npos);
}

TEST(HuggingFaceScan, CountsAWrongTotalSize) {
  Files files = write_model(four_tensors(), 32);
  std::string& index = files[kIndex];
  index.replace(index.find("51"), 2, "52");
  EXPECT_EQ(scan(huggingface_scan, files).warnings.size(), 1u);
}

TEST(HuggingFaceScan, RefusesHostileIndexes) {
  const auto with_index = [](const std::string& text) {
    Files files = write_model(four_tensors(), 32);
    files[kIndex] = text;
    return scan_refusal(files);
  };
  for (const std::string path :
       {"../x.safetensors", "/etc/passwd", "a/b.safetensors", ".hidden", "", "a\\u0000b", "a b"}) {
    EXPECT_NE(with_index("{\"weight_map\":{\"a\":\"" + path + "\"}}").find("only plain names"), std::string::npos)
        << path;
  }
  EXPECT_NE(with_index("{\"weight_map\":{\"a\":\"f\",\"a\":\"g\"}}").find("'a' twice"), std::string::npos);
  EXPECT_NE(with_index("{}").find("no weight_map"), std::string::npos);
  EXPECT_NE(with_index("{\"weight_map\":{}}").find("is empty"), std::string::npos);
  EXPECT_NE(with_index("").find("JSON byte 0"), std::string::npos);
  EXPECT_NE(with_index("{\"x\":" + std::string(100'000, '[')).find("nested deeper"), std::string::npos);
}

TEST(HuggingFaceScan, NamesTheFilesItLookedFor) {
  EXPECT_EQ(scan_refusal({}), "no model.safetensors and no model.safetensors.index.json");
  EXPECT_NE(scan_refusal({{"pytorch_model.bin", "x"}}).find("is a pickle"), std::string::npos);
  EXPECT_EQ(scan_refusal({{"model-00001-of-00002.safetensors", "x"}}),
            "there is 'model-00001-of-00002.safetensors', but no model.safetensors.index.json");
}

TEST(HuggingFaceScan, NamesTensorsOfUnsupportedDtype) {
  const Files files = {
      {"model.safetensors", file_of("{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4)}};
  EXPECT_EQ(scan_refusal(files), "tensor 'w' has the dtype F8_E4M3, which is not supported");
}

}  // namespace
}  // namespace safetensors
