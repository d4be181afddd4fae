// The example formats in C++ and in C. Four ranks write the same bytes as one process, in both languages; every member
// of the ZIP file has a checksum.
#include "host/checkpoint/inspect.hpp"
#include "host/conformance/format_checks.hpp"
#include "tests/host/checkpoint/ranks.hpp"
#include "tests/plugins/format/zero_import/torch_writer.hpp"

namespace chassis {
namespace {

using namespace testing;

const FormatPlugin& npz_cpp() {
  static const RealFormat format("format_cpp", CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins/format_cpp.so");
  return format.get();
}
const FormatPlugin& npz_c() {
  static const RealFormat format("format_c", CHASSIS_TEST_BINARY_DIR "/tests/sdk/plugins/format_c.so");
  return format.get();
}

Model model_for_numpy() {
  Model model;
  for (const Descriptor& d : sharded_model().descriptors)
    if (d.dtype != Dtype::bf16) model.add(d);
  return model;
}

void save(const Model& model, const FormatPlugin& format, const MeshShape& mesh, const std::string& parent,
          const std::string& name) {
  expect_ranks_pass(mesh.world_size(), [&](World& world) {
    const BucketPair buckets(BucketPair::kMinBytes);
    CheckpointWriter(format, buckets)
        .save(plan_save(model.save_tensors(), mesh, format), request_for(model, parent, name, 7, mesh), world);
  });
  EXPECT_TRUE(verify_checkpoint(parent + "/" + name, BucketPair(BucketPair::kMinBytes)).ok());
}

TEST(FormatExamples, PassTheConformanceTests) {
  EXPECT_EQ(format_failures(npz_cpp()), std::vector<std::string>());
  EXPECT_EQ(format_failures(npz_c()), std::vector<std::string>());
}

TEST(FormatExamples, WriteTheSameFileFromAnyRanksInBothLanguages) {
  const TemporaryDirectory dir;
  const Model model = model_for_numpy();
  save(model, npz_cpp(), mesh_of(1, 1), dir.path(), "one");
  const std::string expected = read_file(dir / "one/model.npz");
  for (const FormatPlugin* format : {&npz_cpp(), &npz_c()}) {
    for (const MeshShape& mesh : {mesh_of(2, 2), mesh_of(3, 1)}) {
      const std::string name = format->name() + std::to_string(mesh.world_size());
      save(model, *format, mesh, dir.path(), name);
      EXPECT_EQ(read_file(dir / (name + "/model.npz")) == expected, true) << name;
    }
  }
}

TEST(FormatExamples, AreZipFilesOfArrays) {
  const TemporaryDirectory dir;
  const Model model = model_for_numpy();
  save(model, npz_c(), mesh_of(2, 2), dir.path(), "npz");
  const zero_import::testing::Files files = {{"model.npz", read_file(dir / "npz/model.npz")}};
  const zero_import::Source source = zero_import::testing::source_of(files);
  const auto members = zero_import::zip_members(source, 0);
  ASSERT_EQ(members.size(), model.descriptors.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const Descriptor& d = model.descriptors[i];
    const std::string bytes = source.text(0, members[i].offset, members[i].num_bytes);
    EXPECT_EQ(members[i].name, d.fqn + ".npy");
    EXPECT_EQ(members[i].crc32, zero_import::crc32(bytes)) << d.fqn;
    ASSERT_TRUE(bytes.starts_with(std::string("\x93NUMPY\1\0", 8)));
    const size_t header = 10 + zero_import::number_at<uint16_t>(bytes, 8);
    EXPECT_EQ((members[i].offset + header) % 64, 0u);
    std::string shape;
    for (const int64_t size : d.global_shape) shape += std::to_string(size) + ", ";
    const std::string type = d.dtype == Dtype::i64 ? "<i8" : "<f4";
    const std::string expected_header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
    EXPECT_EQ(bytes.substr(10, expected_header.size()), expected_header);
    EXPECT_EQ(bytes[header - 1], '\n');
    const Tensor& whole = model.wholes.at(d.fqn);
    ASSERT_EQ(bytes.size() - header, whole.num_bytes());
    EXPECT_TRUE(bytes.compare(header, bytes.npos, whole.data_as<char>(), whole.num_bytes()) == 0) << d.fqn;
  }
}

TEST(FormatExamples, AreReadByAnyRanks) {
  const TemporaryDirectory dir;
  const Model model = model_for_numpy();
  save(model, npz_cpp(), mesh_of(2, 1), dir.path(), "npz");
  const BucketPair buckets(BucketPair::kMinBytes);
  CheckpointReader reader(dir / "npz", npz_cpp());
  const MeshShape mesh = mesh_of(1, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto loaded = load_all(reader, model.load_tensors(), buckets, mesh, rank);
    for (const Descriptor& d : model.descriptors)
      EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.local(d, mesh, rank))) << d.fqn;
  }
  EXPECT_NE(error_of([&] { CheckpointReader(dir / "npz", npz_c()); }).find("is of format format_cpp"),
            std::string::npos);
}

TEST(FormatExamples, AreProtectedOutsideTheTensorsToo) {
  const TemporaryDirectory dir;
  save(model_for_numpy(), npz_cpp(), mesh_of(1, 1), dir.path(), "npz");
  const BucketPair buckets(BucketPair::kMinBytes);
  std::string bytes = read_file(dir / "npz/model.npz");
  for (const size_t at : {size_t{5}, bytes.size() / 2, bytes.size() - 30, bytes.size() - 1}) {
    bytes[at] ^= 4;
    write_text(dir / "npz/model.npz", bytes);
    EXPECT_FALSE(verify_checkpoint(dir / "npz", buckets).ok()) << at;
    bytes[at] ^= 4;
  }
}

}  // namespace
}  // namespace chassis
