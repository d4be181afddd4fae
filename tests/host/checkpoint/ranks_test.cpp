// A save by several ranks writes the same bytes as a save by one: each rank only its own, with one outcome on all.
#include "ranks.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>

#include "host/checkpoint/inspect.hpp"
#include "scripted_format.hpp"

namespace chassis {
namespace {

using namespace testing;

constexpr uint64_t kBucketBytes = 4096;

SaveResult save_on(World& world, const Model& model, const FormatPlugin& format, const MeshShape& mesh,
                   SaveRequest request) {
  const BucketPair buckets(kBucketBytes);
  SavePlan plan;
  world.run_and_agree("plan", [&] { plan = plan_of_rank(world, model.save_tensors(), mesh, format); });
  return CheckpointWriter(format, buckets).save(plan, request, world);
}

void save_by_ranks(const Model& model, const FormatPlugin& format, const MeshShape& mesh, const std::string& parent,
                   const std::string& name) {
  expect_ranks_pass(mesh.world_size(), [&](World& world) {
    save_on(world, model, format, mesh, request_for(model, parent, name, 7, mesh));
  });
}

void expect_loads(const Model& model, const FormatPlugin& format, const std::string& path, const MeshShape& mesh) {
  const BucketPair buckets(kBucketBytes);
  CheckpointReader reader(path, format);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto loaded = load_all(reader, model.load_tensors(), buckets, mesh, rank);
    for (const Descriptor& d : model.descriptors)
      EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.local(d, mesh, rank))) << d.fqn << " on rank " << rank;
  }
}

std::map<std::string, std::string> files_of(const std::string& path) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(path))
    if (entry.is_regular_file()) out[fs::relative(entry.path(), path).string()] = read_file(entry.path().string());
  return out;
}

const std::vector<MeshShape>& meshes() {
  static const std::vector<MeshShape> all = {mesh_of(2, 1), mesh_of(1, 2), mesh_of(2, 2), mesh_of(3, 1), mesh_of(4, 2)};
  return all;
}

TEST(ManyRanks, WriteTheBytesThatOneProcessWritesForThem) {
  const Model model = sharded_model();
  const BucketPair buckets(kBucketBytes);
  for (const FormatPlugin* format : {&native(), &huggingface()}) {
    for (const MeshShape& mesh : meshes()) {
      SCOPED_TRACE(format->name() + " on " + mesh.text());
      const TemporaryDirectory dir;
      CheckpointWriter(*format, buckets)
          .save(plan_save(model.save_tensors(), mesh, *format), request_for(model, dir.path(), "one", 7, mesh));
      save_by_ranks(model, *format, mesh, dir.path(), "many");
      std::map<std::string, std::string> one = files_of(dir / "one"), many = files_of(dir / "many");
      // The manifests differ in their times and their own checksums.
      auto a = CheckpointManifest::parse(one[kManifestName], "one");
      const auto b = CheckpointManifest::parse(many[kManifestName], "many");
      a.created = b.created;
      EXPECT_EQ(a.dump(), many[kManifestName]);
      one.erase(kManifestName), many.erase(kManifestName);
      EXPECT_EQ(one, many);
      EXPECT_TRUE(verify_checkpoint(dir / "many", buckets).ok());
    }
  }
}

TEST(ManyRanks, ExportTheSameHuggingFaceFileFromEverySharding) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  save_by_ranks(model, huggingface(), mesh_of(1, 1), dir.path(), "one");
  for (const MeshShape& mesh : meshes()) {
    const std::string name = std::to_string(mesh.size(0)) + "x" + std::to_string(mesh.size(1));
    save_by_ranks(model, huggingface(), mesh, dir.path(), name);
    EXPECT_EQ(read_file(dir / (name + "/model.safetensors")), read_file(dir / "one/model.safetensors")) << name;
    expect_loads(model, huggingface(), dir / name, mesh_of(2, 1));
  }
}

TEST(ManyRanks, SaveWhatAnyOtherMeshLoads) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  for (size_t from = 0; from < meshes().size(); ++from) {
    const std::string name = "mesh" + std::to_string(from);
    save_by_ranks(model, native(), meshes()[from], dir.path(), name);
    expect_loads(model, native(), dir / name, mesh_of(1, 1));
    for (const MeshShape& to : meshes()) expect_loads(model, native(), dir / name, to);
  }
}

// The parts of a box that ranks read add up to its checksum, however the ranks divide it. All bytes are read once and
// compared, and a flipped bit in any box fails the load on all ranks with the tensor's name.
TEST(ManyRanks, CompareBoxesThatTheyReadInParts) {
  const Model model = sharded_model();
  uint64_t model_bytes = 0;
  for (const auto& [fqn, tensor] : model.wholes) model_bytes += tensor.num_bytes();
  uint64_t num_parts = 0;
  const std::vector<MeshShape> some = {mesh_of(1, 1), mesh_of(2, 1), mesh_of(1, 2), mesh_of(4, 1), mesh_of(3, 2)};
  for (const MeshShape& from : some) {
    const TemporaryDirectory dir;
    const BucketPair buckets(kBucketBytes);
    CheckpointWriter(native(), buckets)
        .save(plan_save(model.save_tensors(), from, native()), request_for(model, dir.path(), "c", 7, from));
    const CheckpointManifest manifest = *CheckpointReader(dir / "c", native()).manifest();
    for (const MeshShape& to : some) {
      SCOPED_TRACE(from.text() + " to " + to.text());
      std::atomic<uint64_t> parts = 0;
      expect_ranks_pass(to.world_size(), [&](World& world) {
        const BucketPair mine(kBucketBytes);
        LoadOptions options;
        options.rank = world.rank();
        options.owned_only = true;
        const auto read = [&] {
          std::unique_ptr<CheckpointReader> reader;
          LoadResult result;
          world.run_and_agree("load", [&] {
            reader = std::make_unique<CheckpointReader>(dir / "c", native());
            result = reader->load(
                model.load_tensors(), to, mine, [&](const Descriptor& d, int r) { return model.local(d, to, r); },
                options);
          });
          parts += result.parts.size();
          return reader->verify_parts(result, world);
        };
        const ReadBytes whole = read();
        EXPECT_EQ(whole.num_bytes, model_bytes);
        EXPECT_EQ(whole.num_verified, model_bytes);
        std::mt19937 random(5);
        for (const auto& entry : manifest.boxes) {
          if (entry.box.num_bytes() == 0) continue;
          const uint64_t at = entry.place.offset + random() % entry.box.num_bytes();
          const auto flip_it = [&](const char* when) {
            world.barrier(when);
            if (world.rank() == 0) flip_bit(dir / ("c/" + manifest.files[entry.place.file].path), at);
            world.barrier(when);
          };
          flip_it("before");
          EXPECT_NE(error_of(read).find("tensor '" + entry.box.name + "' in '"), std::string::npos) << entry.box.name;
          flip_it("after");
        }
      });
      if (from != to) num_parts += parts;
    }
  }
  EXPECT_GT(num_parts, 1000u);
}

// torch.distributed.checkpoint requires it: its reader has one entry for each name in a file.
TEST(ManyRanks, NeverPutTwoBoxesOfATensorIntoOneNativeFile) {
  const Model model = sharded_model();
  for (const MeshShape& mesh : meshes()) {
    const SavePlan plan = plan_save(model.save_tensors(), mesh, native());
    std::set<std::pair<uint32_t, std::string>> seen;
    for (size_t i = 0; i < plan.boxes.size(); ++i)
      EXPECT_TRUE(seen.emplace(plan.layout.places[i].file, plan.boxes[i].name).second) << plan.boxes[i].name;
    // A flat range has at most three boxes in a matrix and five in a stack of matrices; a rank has as many files.
    EXPECT_LE(plan.layout.files.size(), static_cast<size_t>(5 * mesh.world_size()));
  }
}

TEST(ManyRanks, ReadOnlyTheirOwnTensorsAndReturnTheSameResult) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(2, 2);
  std::mutex mutex;
  std::vector<SaveResult> results;
  expect_ranks_pass(4, [&](World& world) {
    SaveRequest request = request_for(model, dir.path(), "c", 7, mesh);
    request.text_files = {{"config.json", "{}"}};
    request.tensors = [&](const Descriptor& d, int rank) {
      if (rank != world.rank()) throw internal_error("asked for another rank's");
      return model.local(d, mesh, rank);
    };
    const SaveResult result = save_on(world, model, native(), mesh, request);
    const std::lock_guard lock(mutex);
    results.push_back(result);
  });
  ASSERT_EQ(results.size(), 4u);
  uint64_t num_bytes = 0;
  for (const auto& [path, bytes] : files_of(dir / "c")) num_bytes += path == kManifestName ? 0 : bytes.size();
  for (const SaveResult& result : results) {
    EXPECT_EQ(result.num_bytes, results[0].num_bytes);
    EXPECT_EQ(result.seconds, results[0].seconds);
    EXPECT_EQ(result.path, dir / "c");
    EXPECT_EQ(result.num_bytes, num_bytes);
  }
}

// A rank holds every other element: more runs per bucket than the maximum number of segments.
TEST(ManyRanks, ShareATensorElementByElement) {
  const TemporaryDirectory dir;
  Model model;
  Descriptor d = Descriptor::plain("w", Dtype::f32, {100'000, 2});
  d.placements = {Placement::dim_chunk({"tp"}, 1)};
  model.add(d).add("tail", Dtype::u8, {3});
  expect_ranks_pass(2, [&](World& world) {
    const BucketPair buckets(1 << 20);
    const SavePlan plan = plan_save(model.save_tensors(), mesh_of(1, 2), huggingface());
    CheckpointWriter(huggingface(), buckets).save(plan, request_for(model, dir.path(), "c", 0, mesh_of(1, 2)), world);
  });
  expect_loads(model, huggingface(), dir / "c", mesh_of(1, 1));
  EXPECT_TRUE(verify_checkpoint(dir / "c", BucketPair(4096)).ok());
}

class FailingRank : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(FailingRank, FailsTheSaveOnAllAndLeavesTheOldCheckpoint) {
  const auto& [bad_rank, where] = GetParam();
  const std::string stage = where;
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(2, 2);
  save_by_ranks(model, native(), mesh, dir.path(), "c");
  const auto before = files_of(dir / "c");
  const std::vector<std::string> errors = run_ranks(4, [&](World& world) {
    SaveRequest request = request_for(model, dir.path(), "c", 8, mesh);
    const bool fails = world.rank() == bad_rank;
    if (fails && stage == "tensors")
      request.tensors = [&](const Descriptor&, int) -> Tensor { throw internal_error("the device is gone"); };
    if (fails && stage == "request") request.text_files = {{"../x", ""}};
    request.on_stage = [&](const char* reached) {
      if (fails && stage == reached) throw storage_error("the device is gone");
    };
    save_on(world, model, native(), mesh, request);
  });
  for (int rank = 0; rank < 4; ++rank) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    EXPECT_NE(error.find("was not saved; earlier checkpoints are unchanged"), std::string::npos) << error;
    EXPECT_NE(error.find(stage == "request" ? "is not a valid path" : "the device is gone"), std::string::npos)
        << error;
    EXPECT_EQ(error.find("rank " + std::to_string(bad_rank) + ": ") != std::string::npos, rank != bad_rank) << error;
    EXPECT_EQ(error.substr(0, 3), stage == "tensors" ? "[1]" : "[7]") << error;
  }
  EXPECT_EQ(files_of(dir / "c"), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

INSTANTIATE_TEST_SUITE_P(InEveryStage, FailingRank,
                         ::testing::Values(std::tuple(0, "request"), std::tuple(2, "request"), std::tuple(0, "staged"),
                                           std::tuple(0, "allocated"), std::tuple(2, "allocated"),
                                           std::tuple(0, "tensors"), std::tuple(3, "tensors"),
                                           std::tuple(0, "streamed"), std::tuple(1, "streamed"),
                                           std::tuple(0, "written"), std::tuple(0, "manifest"),
                                           std::tuple(0, "synced")));

// The other ranks wait for a stalled rank until the deadline, then name it. The old checkpoint is unchanged.
class StallingRank : public ::testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(StallingRank, EndsTheSaveOnAllAtTheDeadline) {
  const auto& [bad_rank, where] = GetParam();
  const std::string stage = where;
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(3, 1);
  save_by_ranks(model, native(), mesh, dir.path(), "c");
  const auto before = files_of(dir / "c");
  std::mutex mutex;
  std::condition_variable changed;
  int num_ended = 0;
  const std::vector<std::string> errors = run_ranks(3, [&](World& world) {
    world.set_deadline(std::chrono::seconds(1));
    SaveRequest request = request_for(model, dir.path(), "c", 8, mesh);
    request.on_stage = [&](const char* reached) {
      if (world.rank() != bad_rank || stage != reached) return;
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return num_ended == 2; });
    };
    const auto count = [&](void*) {
      const std::lock_guard lock(mutex);
      ++num_ended;
      changed.notify_all();
    };
    const std::unique_ptr<World, decltype(count)> ended(&world, count);
    world.run([&] {
      save_on(world, model, native(), mesh, request);
      return 0;
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& error = errors[static_cast<size_t>(rank)];
    EXPECT_NE(error, "") << rank;
    if (rank != bad_rank) {
      EXPECT_NE(error.find("rank " + std::to_string(bad_rank)), std::string::npos) << error;
    }
  }
  EXPECT_TRUE(files_of(dir / "c") == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

INSTANTIATE_TEST_SUITE_P(InEveryStage, StallingRank,
                         ::testing::Values(std::tuple(0, "staged"), std::tuple(0, "allocated"),
                                           std::tuple(0, "streamed"), std::tuple(2, "streamed"),
                                           std::tuple(0, "written"), std::tuple(0, "manifest"),
                                           std::tuple(0, "synced")));

// A format may store the boxes of all ranks in one file: then each rank lays out all boxes, and writes its own.
TEST(ManyRanks, ShareAFileIfTheFormatDoesNotDivideByRank) {
  ScriptedFormat format;
  format.layout = [](const chassis_save_request_t& request, const chassis_layout_sink_t& out) {
    uint64_t at = 4;
    for (uint32_t i = 0; i < request.num_tensors; ++i) at += request.tensors[i]->num_bytes;
    throw_if_failed(out.file(&out, str_of("all.bin"), str_of("HEAD"), at, 0), "file");
    at = 4;
    for (uint32_t i = 0; i < request.num_tensors; at += request.tensors[i++]->num_bytes)
      throw_if_failed(out.place(&out, i, 0, at), "place");
    return static_cast<chassis_status_t*>(nullptr);
  };
  EXPECT_FALSE(format.plugin.divides_by_rank({}));
  EXPECT_FALSE(huggingface().divides_by_rank({}));
  EXPECT_TRUE(native().divides_by_rank({}));
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(2, 2);
  const BucketPair buckets(kBucketBytes);
  CheckpointWriter(format.plugin, buckets)
      .save(plan_save(model.save_tensors(), mesh, format.plugin), request_for(model, dir.path(), "one", 7, mesh));
  save_by_ranks(model, format.plugin, mesh, dir.path(), "many");
  EXPECT_EQ(read_file(dir / "many/all.bin"), read_file(dir / "one/all.bin"));
  EXPECT_TRUE(verify_checkpoint(dir / "many", buckets).ok());
}

TEST(ManyRanks, RefuseToSaveByDifferentPlans) {
  const TemporaryDirectory dir;
  const MeshShape mesh = mesh_of(2, 1);
  const std::vector<std::string> errors = run_ranks(2, [&](World& world) {
    Model model;
    model.add("w", Dtype::f32, {4}).add("state", Dtype::f32, {4});
    // An optimizer state that only one rank has.
    if (world.rank() == 1) model.add("late", Dtype::f32, {4});
    save_on(world, model, native(), mesh, request_for(model, dir.path(), "c", 0, mesh));
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("'late' f32[4] is on rank 1, not on rank 0"), std::string::npos) << error;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace chassis
