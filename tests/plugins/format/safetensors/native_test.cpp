// Shards: one box per tensor and file, global shapes, and incomplete sets of files.
#include "plugins/format/safetensors/native.hpp"

#include <gtest/gtest.h>

#include "chassis/tensor.h"
#include "memory_source.hpp"

namespace safetensors {
namespace {

Files write_shards(const Request& request, uint64_t max_file_bytes = 0) {
  return write(native_layout(request.get(max_file_bytes)), request);
}
std::string scan_refusal(const Files& files) {
  return defect_of([&] { scan(native_scan, files); });
}
Request two_ranks() {
  Request r;
  r.box("t", CHASSIS_DTYPE_F32, {5, 2}, {0, 0}, {3, 2}, 0).box("t", CHASSIS_DTYPE_F32, {5, 2}, {3, 0}, {2, 2}, 1);
  return std::move(r.whole("s", CHASSIS_DTYPE_I64, {}, 0));
}

TEST(NativeLayout, GivesEveryRankItsShard) {
  const Files files = write_shards(two_ranks());
  ASSERT_EQ(files.size(), 2u);
  const Scanned found = scan(native_scan, files);
  ASSERT_EQ(found.boxes.size(), 3u);
  const Header first = Header::parse(
      files.at("sharded/shard-00001-model-00001-of-00001.safetensors")
          .substr(8, 1000)
          .substr(0, static_cast<unsigned char>(files.at("sharded/shard-00001-model-00001-of-00001.safetensors")[0]) +
                         256u * static_cast<unsigned char>(
                                    files.at("sharded/shard-00001-model-00001-of-00001.safetensors")[1])),
      32);
  EXPECT_EQ(first.metadata_value("DCP_VERSION"), "1.0");
  EXPECT_EQ(first.metadata_value("format"), "pt");
  EXPECT_EQ(first.metadata_value("DCP_SHARDING_INFO"),
            "{\"t\": {\"saved_offsets\": [0, 0], \"global_shape\": [5, 2]}, \"s\": {\"saved_offsets\": [], "
            "\"global_shape\": []}}");
  for (const auto& box : found.boxes) {
    if (box.name == "s") continue;
    EXPECT_EQ(box.global_shape, (std::vector<int64_t>{5, 2}));
    EXPECT_EQ(box.offset[0], box.rank == 0 ? 0 : 3);
    EXPECT_EQ(box.shape[0], box.rank == 0 ? 3 : 2);
  }
  EXPECT_FALSE(found.metadata.contains("DCP_SHARDING_INFO"));
}

TEST(NativeLayout, PutsASecondBoxOfANameIntoTheNextFile) {
  Request r;
  r.box("t", CHASSIS_DTYPE_U8, {3, 4}, {0, 1}, {1, 3}).box("t", CHASSIS_DTYPE_U8, {3, 4}, {1, 0}, {1, 4});
  r.box("t", CHASSIS_DTYPE_U8, {3, 4}, {2, 0}, {1, 2}).whole("u", CHASSIS_DTYPE_U8, {1});
  const Files files = write_shards(r);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_TRUE(files.contains("sharded/shard-00001-model-00003-of-00003.safetensors"));
  EXPECT_EQ(scan(native_scan, files).boxes.size(), 4u);
}

TEST(NativeLayout, SplitsBySize) {
  Request r;
  for (int i = 0; i < 10; ++i) r.whole("t" + std::to_string(i), CHASSIS_DTYPE_U8, {10});
  EXPECT_EQ(write_shards(r, 25).size(), 5u);
  EXPECT_EQ(scan(native_scan, write_shards(r, 25)).boxes.size(), 10u);
  EXPECT_EQ(write_shards(r, 1).size(), 10u);
}

TEST(NativeLayout, RefusesDtypesThatDcpMisreads) {
  Request r;
  r.whole("mask", CHASSIS_DTYPE_BOOL, {4});
  EXPECT_NE(defect_of([&] { native_layout(r.get()); }).find("'mask' is boolean"), std::string::npos);
}

TEST(NativeScan, DerivesGlobalShapesThatAreNotDeclared) {
  const auto shard = [](const char* offsets, const char* shape, int bytes) {
    return file_of(std::string("{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{\\\"t\\\":{\\\"saved_offsets\\\":") +
                       offsets + "}}\",\"DCP_VERSION\":\"1.0\"},\"t\":{\"dtype\":\"U8\",\"shape\":" + shape +
                       ",\"data_offsets\":[0," + std::to_string(bytes) + "]}}",
                   static_cast<uint64_t>(bytes));
  };
  const Files files = {{"shard-00001-model-00001-of-00001.safetensors", shard("[0,0]", "[2,3]", 6)},
                       {"shard-00002-model-00001-of-00001.safetensors", shard("[2,0]", "[1,3]", 3)}};
  EXPECT_EQ(scan(native_scan, files).boxes[0].global_shape, (std::vector<int64_t>{3, 3}));
}

TEST(NativeScan, RefusesIncompleteSetsOfFiles) {
  Request r;
  for (int i = 0; i < 3; ++i) r.whole("t" + std::to_string(i), CHASSIS_DTYPE_U8, {10});
  Files files = write_shards(r, 10);
  files.erase("sharded/shard-00001-model-00002-of-00003.safetensors");
  EXPECT_EQ(scan_refusal(files), "shard 1 has 2 of 3 files");
  EXPECT_EQ(scan_refusal({}), "no sharded/shard-…-model-…-of-….safetensors");
  EXPECT_EQ(scan_refusal({{"sharded/shard-1-model-1-of-1.safetensors", "x"}}),
            "no sharded/shard-…-model-…-of-….safetensors");
}

TEST(NativeScan, RefusesShardingInfoThatContradictsTheHeader) {
  const auto with_info = [](const std::string& info) {
    std::string escaped;
    for (char c : info) escaped += c == '"' ? "\\\"" : std::string(1, c);
    const std::string json = "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"" + escaped +
                             "\"},\"t\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    return scan_refusal({{"sharded/shard-00001-model-00001-of-00001.safetensors", file_of(json, 2)}});
  };
  EXPECT_EQ(with_info("{\"t\":{\"saved_offsets\":[0]}}"), "nothing was wrong");
  EXPECT_NE(with_info("{}").find("'t' is not in DCP_SHARDING_INFO"), std::string::npos);
  EXPECT_NE(with_info("").find("has no DCP_SHARDING_INFO"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{\"saved_offsets\":[0,0]}}").find("does not fit"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{\"saved_offsets\":[1],\"global_shape\":[2]}}").find("does not fit"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{\"saved_offsets\":[9223372036854775807]}}").find("does not fit"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{\"saved_offsets\":[-1]}}").find("expected a whole number"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{}}").find("expected a string"), std::string::npos);
  EXPECT_NE(with_info("{\"t\":{\"saved_offsets\":[0]},\"t\":{\"saved_offsets\":[0]}}").find("twice"),
            std::string::npos);
}

}  // namespace
}  // namespace safetensors
