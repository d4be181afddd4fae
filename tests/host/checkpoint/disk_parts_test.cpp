// Tensors stored in files in another form than in the run: joined, sliced or transposed. They are loaded from any mesh
// onto any other, bit for bit, and copied from file to file.
#include <fstream>

#include "fixture.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using namespace testing;

struct MappedModel {
  Model model;
  std::map<std::string, std::vector<StoredPart>> parts;

  MappedModel(const std::vector<Placement>& of_rows) {
    const auto add = [&](const std::string& fqn, Dtype dtype, const Shape& shape, bool sharded = true) {
      Descriptor d = Descriptor::plain(fqn, dtype, shape);
      if (sharded) d.placements = of_rows;
      model.add(d);
    };
    add("q", Dtype::f32, {8, 6});
    add("kv", Dtype::f32, {7, 6});
    add("conv", Dtype::f32, {70, 4200});
    add("conv.bf16", Dtype::bf16, {5, 9});
    add("experts", Dtype::f32, {3, 4, 5});
    add("cube", Dtype::f32, {4, 3, 5});
    add("norm", Dtype::f32, {11}, false);
    // q and kv are one tensor [15, 6], kv before q.
    parts["kv"] = {{"qkv", {15, 6}, Box::whole({7, 6}), {0, 0}, {0, 1}}};
    parts["q"] = {{"qkv", {15, 6}, Box::whole({8, 6}), {7, 0}, {0, 1}}};
    parts["conv"] = {{"conv_t", {4200, 70}, Box::whole({70, 4200}), {0, 0}, {1, 0}}};
    parts["conv.bf16"] = {{"small_t", {9, 5}, Box::whole({5, 9}), {0, 0}, {1, 0}}};
    for (int64_t e = 0; e < 3; ++e)
      parts["experts"].push_back({"experts." + std::to_string(e), {5, 4}, {{e, 0, 0}, {e + 1, 4, 5}}, {0, 0}, {2, 1}});
    parts["cube"] = {{"cube_p", {3, 4, 5}, Box::whole({4, 3, 5}), {0, 0, 0}, {1, 0, 2}}};
  }

  std::vector<StoredPart> parts_of(const Descriptor& d) const {
    const auto known = parts.find(d.fqn);
    return known != parts.end() ? known->second : std::vector{StoredPart::whole(d.fqn, d.global_shape)};
  }
  std::vector<SaveTensor> save_tensors() const {
    std::vector<SaveTensor> out = model.save_tensors();
    for (SaveTensor& tensor : out) tensor.parts = parts_of(tensor.descriptor);
    return out;
  }
  std::vector<LoadTensor> load_tensors() const {
    std::vector<LoadTensor> out = model.load_tensors();
    for (LoadTensor& tensor : out) tensor.parts = parts_of(tensor.descriptor);
    return out;
  }
};

std::vector<std::pair<MeshShape, std::vector<Placement>>> layouts() {
  const MeshShape three({{"dp", 3}});
  return {{MeshShape({{"dp", 1}}), {}},
          {three, {Placement::flat_range({"dp"})}},
          {three, {Placement::dim_chunk({"dp"}, 0)}},
          {MeshShape({{"dp", 2}, {"tp", 2}}), {Placement::dim_chunk({"tp"}, 1), Placement::dim_chunk({"dp"}, 0)}}};
}

// The expected contents of a tensor in a file, computed element by element.
Tensor expected_on_disk(const MappedModel& mapped, const std::string& name, const Shape& shape, Dtype dtype) {
  Tensor out = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), dtype);
  const int64_t size = size_bytes(dtype);
  const Shape strides = row_major_strides(shape);
  for (const Descriptor& d : mapped.model.descriptors)
    for (const StoredPart& part : mapped.parts_of(d)) {
      if (part.disk_name != name) continue;
      const Shape from_strides = row_major_strides(d.global_shape);
      Shape at = part.box.begin;
      for (bool more = numel(part.box) > 0; more;) {
        int64_t from = 0, to = 0;
        for (int k = 0; k < at.ndim(); ++k) from += at[k] * from_strides[k];
        for (int k = 0; k < shape.ndim(); ++k) {
          const int dim = part.dims[static_cast<size_t>(k)];
          to += (part.disk_begin[k] + at[dim] - part.box.begin[dim]) * strides[k];
        }
        std::memcpy(out.data_as<char>() + to * size, mapped.model.wholes.at(d.fqn).data_as<char>() + from * size,
                    static_cast<size_t>(size));
        more = false;
        for (int k = at.ndim() - 1; k >= 0 && !more; --k) {
          more = ++at[k] < part.box.end[k];
          if (!more) at[k] = part.box.begin[k];
        }
      }
    }
  return out;
}

std::string save(const MappedModel& mapped, const MeshShape& mesh, const FormatPlugin& format,
                 const TemporaryDirectory& dir, const std::string& name, const BucketPair& buckets) {
  CheckpointWriter(format, buckets)
      .save(plan_save(mapped.save_tensors(), mesh, format), request_for(mapped.model, dir.path(), name, 0, mesh));
  return dir / name;
}

TEST(DiskParts, LieWhereTheMappingSaysAndLoadOnAnyMesh) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  for (const FormatPlugin* format : {&huggingface(), &native()})
    for (const auto& [mesh, placements] : layouts()) {
      const MappedModel mapped(placements);
      CheckpointReader reader(save(mapped, mesh, *format, dir, "c", buckets), *format);
      ASSERT_EQ(reader.tensors().size(), 8u);
      std::vector<LoadTensor> raw;
      for (const DiskTensor& tensor : reader.tensors())
        raw.push_back({Descriptor::plain(tensor.name, tensor.dtype, tensor.global_shape), ""});
      for (const auto& [name, tensor] : load_all(reader, raw, buckets)) {
        const DiskTensor& found = *reader.find(name);
        EXPECT_TRUE(same_bytes(tensor, expected_on_disk(mapped, name, found.global_shape, found.dtype))) << name;
      }
      for (const auto& [other, other_placements] : layouts()) {
        const MappedModel wanted(other_placements);
        for (int rank = 0; rank < other.world_size(); ++rank) {
          const auto loaded = load_all(reader, wanted.load_tensors(), buckets, other, rank);
          for (const Descriptor& d : wanted.model.descriptors)
            EXPECT_TRUE(same_bytes(loaded.at(d.fqn), wanted.model.local(d, other, rank)))
                << d.text() << " on rank " << rank << " of " << other.text();
        }
      }
    }
}

TEST(DiskParts, AreReadOnceByTheirOwners) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  const MeshShape mesh({{"dp", 3}});
  const MappedModel mapped({Placement::dim_chunk({"dp"}, 0)});
  const SavePlan plan = plan_save(mapped.save_tensors(), mesh, huggingface());
  CheckpointReader reader(save(mapped, mesh, huggingface(), dir, "c", buckets), huggingface());
  uint64_t num_read = 0;
  for (int rank = 0; rank < 3; ++rank) {
    LoadOptions options;
    options.rank = rank;
    options.owned_only = true;
    const LoadResult result = reader.load(
        mapped.load_tensors(), mesh, buckets,
        [&](const Descriptor& d, int r) { return mapped.model.local(d, mesh, r); }, options);
    num_read += result.num_bytes;
  }
  EXPECT_EQ(num_read, plan.tensor_bytes);
}

// The number of read calls of this process so far; -1 if the system does not count them.
int64_t num_read_calls() {
  std::ifstream file("/proc/self/io");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("syscr: ")) return std::stoll(line.substr(7));
  return -1;
}

TEST(DiskParts, ElementsThatLieNearEachOtherAreReadAtOnce) {
  if (num_read_calls() < 0) GTEST_SKIP() << "no /proc/self/io";
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  const MeshShape mesh({{"dp", 70}});
  const MappedModel mapped({Placement::dim_chunk({"dp"}, 0)});
  CheckpointReader reader(save(MappedModel({}), {}, huggingface(), dir, "c", buckets), huggingface());
  const int64_t before = num_read_calls();
  // Rank 3 has one row of "conv": 4200 elements that lie 280 bytes apart in the file.
  const auto loaded = load_all(reader, mapped.load_tensors(), buckets, mesh, 3);
  EXPECT_LT(num_read_calls() - before, 200);
  for (const Descriptor& d : mapped.model.descriptors)
    EXPECT_TRUE(same_bytes(loaded.at(d.fqn), mapped.model.local(d, mesh, 3))) << d.text();
}

TEST(DiskParts, AreCopiedFromFileToFileInBothDirections) {
  const TemporaryDirectory dir;
  const BucketPair buckets(1 << 16);
  const MappedModel mapped({});
  const std::string plain = dir / "plain";
  CheckpointWriter(native(), buckets)
      .save(plan_save(mapped.model.save_tensors(), {}, native()), request_for(mapped.model, dir.path(), "plain"));
  const auto copy = [&](const std::string& from, bool from_mapped, const std::string& to, bool to_mapped) {
    CheckpointReader reader(dir / from, from == "plain" ? native() : huggingface());
    SaveRequest request = request_for(mapped.model, dir.path(), to);
    request.tensors = {};
    request.source =
        from_mapped ? reader.source([&](const Descriptor& d) { return mapped.parts_of(d); }) : reader.source();
    CheckpointWriter(huggingface(), buckets)
        .save(plan_save(to_mapped ? mapped.save_tensors() : mapped.model.save_tensors(), {}, huggingface()), request);
  };
  save(mapped, {}, huggingface(), dir, "mapped", buckets);
  const auto file = [&](const std::string& name) { return test::text_of_file(dir / (name + "/model.safetensors")); };
  copy("plain", false, "a", true);
  EXPECT_TRUE(file("a") == file("mapped"));
  copy("mapped", true, "b", true);
  EXPECT_TRUE(file("b") == file("mapped"));
  copy("mapped", true, "c", false);
  copy("plain", false, "d", false);
  EXPECT_TRUE(file("c") == file("d"));
}

TEST(DiskParts, WithOneNameFormOneTensor) {
  const auto refusal = [](const std::function<void(MappedModel&)>& change) {
    MappedModel mapped({});
    change(mapped);
    try {
      plan_save(mapped.save_tensors(), {}, huggingface());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal([](MappedModel&) {}), "");
  const std::string conv = refusal([](MappedModel& m) { m.parts["q"][0].disk_name = "conv_t"; });
  EXPECT_NE(conv.find("two tensors are called 'conv_t' on disk: 'q' and 'conv'"), std::string::npos) << conv;
  const std::string q = refusal([](MappedModel& m) { m.parts["q"][0].disk_name = "q"; });
  EXPECT_NE(q.find("on disk is [15, 6], 90 elements, of which 4"), std::string::npos) << q;
}

}  // namespace
}  // namespace chassis
