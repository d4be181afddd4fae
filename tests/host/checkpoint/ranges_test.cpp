// Ranks read only their own byte ranges and the headers, as counted by the system.
#include <fstream>

#include "ranks.hpp"

namespace chassis {
namespace {

using namespace testing;

// All bytes that this process has ever read.
uint64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  for (uint64_t value; file >> key >> value;)
    if (key == "rchar:") return value;
  return 0;
}

struct Reading {
  std::vector<uint64_t> of_rank;  // as the reader reports
  uint64_t total = 0, by_system = 0;
};

// Every rank in turn opens the directory and loads.
Reading read_by_ranks(const Model& model, const FormatPlugin& format, const std::string& path, const MeshShape& mesh,
                      bool owned_only = false) {
  const BucketPair buckets(1 << 20);
  Reading out;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    std::map<std::string, Tensor> local;
    const LocalTensors tensors = [&](const Descriptor& d, int r) {
      Tensor fresh = model.local(d, mesh, r);
      if (fresh.num_bytes() > 0) std::memset(fresh.data(), 0xEE, fresh.num_bytes());
      return local[d.fqn] = fresh;
    };
    LoadOptions options;
    options.rank = rank;
    options.owned_only = owned_only;
    const uint64_t before = bytes_read();
    CheckpointReader reader(path, format);
    const LoadResult result = reader.load(model.load_tensors(), mesh, buckets, tensors, options);
    out.by_system += bytes_read() - before;
    out.of_rank.push_back(result.num_bytes);
    out.total += result.num_bytes;
    if (owned_only) continue;
    for (const Descriptor& d : model.descriptors)
      EXPECT_TRUE(same_bytes(local[d.fqn], model.local(d, mesh, rank))) << d.fqn << " on rank " << rank;
  }
  return out;
}

// About 4 MiB, with sizes that no mesh divides evenly; norms are sharded too, as under FSDP2 and ZeRO-3.
Model divided_model(const std::vector<Placement>& of_matrix, const std::vector<Placement>& of_vector) {
  Model model;
  const auto add = [&](const std::string& fqn, const Shape& shape) {
    Descriptor d = Descriptor::plain(fqn, Dtype::f32, shape);
    d.placements = shape.ndim() == 1 ? of_vector : of_matrix;
    model.add(d);
  };
  add("embed", {1283, 127});
  for (int layer = 0; layer < 7; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer);
    add(prefix + ".qkv", {383, 127});
    add(prefix + ".mlp", {127, 509});
    add(prefix + ".norm", {127});
  }
  return model;
}
uint64_t model_bytes(const Model& model) {
  uint64_t sum = 0;
  for (const auto& [fqn, tensor] : model.wholes) sum += tensor.num_bytes();
  return sum;
}

struct Case {
  const char* name;
  MeshShape mesh;
  std::vector<Placement> of_matrix, of_vector;
  int64_t unit_rows;  // rows of a matrix that a rank may hold beyond its even share; 0: one element
};

const Placement kFsdp = Placement::dim_chunk({"dp"}, 0), kZero = Placement::flat_range({"dp"}),
                kRows = Placement::dim_chunk({"tp"}, 0), kColumns = Placement::dim_chunk({"tp"}, 1);

class DividedModel : public ::testing::TestWithParam<Case> {};

TEST_P(DividedModel, IsReadOnceByAllRanksTogether) {
  const Case& c = GetParam();
  const Model model = divided_model(c.of_matrix, c.of_vector);
  const auto num_ranks = static_cast<uint64_t>(c.mesh.world_size());
  const TemporaryDirectory dir;
  uint64_t units = 0;  // over all tensors
  for (const Descriptor& d : model.descriptors)
    units +=
        d.global_shape.ndim() == 1 || c.unit_rows == 0 ? 8 : static_cast<uint64_t>(d.global_shape[1] * c.unit_rows) * 4;

  const BucketPair buckets(1 << 20);
  for (const FormatPlugin* format : {&huggingface(), &native()}) {
    const SavePlan plan = plan_save(model.save_tensors(), c.mesh, *format);
    CheckpointWriter(*format, buckets).save(plan, request_for(model, dir.path(), format->name(), 0, c.mesh));
    uint64_t headers = fs::file_size(dir / (format->name() + "/" + kManifestName));
    for (const auto& file : plan.layout.files) headers += file.header.size();

    const Reading reading = read_by_ranks(model, *format, dir / format->name(), c.mesh);
    const uint64_t bytes = model_bytes(model);
    EXPECT_EQ(reading.total, bytes);
    for (const uint64_t of_rank : reading.of_rank) EXPECT_LE(of_rank, bytes / num_ranks + units);
    if (reading.by_system > 0) {
      EXPECT_GE(reading.by_system, bytes);
      // Every rank reads the headers, first their lengths and then their texts, and /proc for the count.
      EXPECT_LE(reading.by_system, bytes * 102 / 100 + num_ranks * (2 * headers + 4096));
    }
    std::printf(
        "%s, %s: model %llu bytes, all ranks read %llu and headers of %llu; the largest share %.4f of an even one\n",
        c.name, format->name().c_str(), static_cast<unsigned long long>(bytes),
        static_cast<unsigned long long>(reading.by_system), static_cast<unsigned long long>(headers),
        static_cast<double>(*std::max_element(reading.of_rank.begin(), reading.of_rank.end()) * num_ranks) /
            static_cast<double>(bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Load, DividedModel,
    ::testing::Values(
        Case{"fsdp2", mesh_of(8, 1), {kFsdp}, {kFsdp}, 1}, Case{"zero3", mesh_of(8, 1), {kZero}, {kZero}, 0},
        Case{"tp rows then fsdp2", mesh_of(4, 2), {kRows, kFsdp}, {Placement::flat_range({"dp", "tp"})}, 2},
        Case{"tp columns then zero3", mesh_of(3, 2), {kColumns, kZero}, {Placement::flat_range({"dp", "tp"})}, 1}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    });

TEST(ReplicatedModel, IsReadByEveryRankOrOnlyByOwners) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 20);
  Model model;
  for (int i = 0; i < 50; ++i) {
    Descriptor d = Descriptor::plain("layer." + std::to_string(i), Dtype::f32, {31, 129});
    d.owner = OwnerRule::kSpread;
    model.add(d);
  }
  const MeshShape mesh = mesh_of(4, 1);
  CheckpointWriter(huggingface(), buckets)
      .save(plan_save(model.save_tensors(), mesh, huggingface()), request_for(model, dir.path(), "m", 0, mesh));
  EXPECT_EQ(read_by_ranks(model, huggingface(), dir / "m", mesh).total, 4 * model_bytes(model));
  const Reading once = read_by_ranks(model, huggingface(), dir / "m", mesh, true);
  EXPECT_EQ(once.total, model_bytes(model));
  for (const uint64_t of_rank : once.of_rank) EXPECT_LT(of_rank, model_bytes(model) / 2);
}

}  // namespace
}  // namespace chassis
