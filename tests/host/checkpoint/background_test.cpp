// Saves that run on their own thread while the caller continues.
#include <condition_variable>
#include <mutex>

#include "host/checkpoint/inspect.hpp"
#include "host/checkpoint/save.hpp"
#include "ranks.hpp"

namespace chassis {
namespace {

using namespace testing;

// Blocks threads until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

// The local tensors of a rank, held during the test.
class Share {
 public:
  Share(const Model& model, const MeshShape& mesh, int rank) {
    for (const Descriptor& d : model.descriptors) tensors_[d.fqn] = model.local(d, mesh, rank);
  }
  LocalTensors locals() const {
    return [this](const Descriptor& d, int) { return tensors_.at(d.fqn); };
  }
  void change() {
    for (auto& [name, tensor] : tensors_)
      if (tensor.num_bytes() > 0) std::memset(tensor.data(), 0x11, tensor.num_bytes());
  }

 private:
  std::map<std::string, Tensor> tensors_;
};

void expect_holds(const std::string& path, const Model& model, const MeshShape& mesh) {
  const BucketPair buckets(4096);
  CheckpointReader reader(path, native());
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto loaded = load_all(reader, model.load_tensors(), buckets, mesh, rank);
    for (const Descriptor& d : model.descriptors)
      EXPECT_TRUE(same_bytes(loaded.at(d.fqn), model.local(d, mesh, rank))) << d.fqn << " on rank " << rank;
  }
}

TEST(SaveInTheBackground, HoldsTheTensorsAsTheyWereWhenItBegan) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(2, 2);
  std::vector<Gate> gates(4);
  expect_ranks_pass(4, [&](World& world) {
    const BucketPair buckets(4096);
    const SavePlan plan = plan_save(model.save_tensors(), mesh, native());
    Share share(model, mesh, world.rank());
    Gate& gate = gates[static_cast<size_t>(world.rank())];
    SaveRequest request = request_for(model, dir.path(), "c", 7, mesh);
    request.tensors = [&](const Descriptor& d, int rank) {
      gate.wait();  // the caller reaches await_tensors() before the stream has read a byte
      return share.locals()(d, rank);
    };
    Save save(native(), buckets, plan, request, world, Save::Where::kOnAThread);
    EXPECT_FALSE(save.ready());
    std::thread opener([&] { gate.open(); });
    save.await_tensors();
    share.change();
    EXPECT_TRUE(save.ready());
    const SaveResult result = save.finish();
    EXPECT_GT(result.stall_seconds, 0.0);
    EXPECT_LE(result.stall_seconds, result.seconds + 1.0);
    opener.join();
  });
  expect_holds(dir / "c", model, mesh);
}

TEST(SaveInTheBackground, ReportsAFailureOfOneRankOnAllRanksAtTheNextVote) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const MeshShape mesh = mesh_of(2, 1);
  const std::vector<std::string> errors = run_ranks(2, [&](World& world) {
    const BucketPair buckets(4096);
    const SavePlan plan = plan_save(model.save_tensors(), mesh, native());
    SaveRequest request = request_for(model, dir.path(), "c", 7, mesh);
    if (world.rank() == 1)
      request.tensors = [](const Descriptor&, int) -> Tensor { throw storage_error("the device is gone"); };
    Save save(native(), buckets, plan, request, world, Save::Where::kOnAThread);
    save.await_tensors();  // returns: advance() throws the error on all ranks
    save.advance();
  });
  EXPECT_NE(errors[0].find("rank 1: "), std::string::npos) << errors[0];
  for (const std::string& error : errors) EXPECT_NE(error.find("the device is gone"), std::string::npos) << error;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(SaveInTheBackground, LeavesNothingWhenCancelled) {
  const TemporaryDirectory dir;
  const Model model = small_model();
  const BucketPair buckets(4096);
  const SavePlan plan = plan_save(model.save_tensors(), {}, native());
  int asked = 0;
  Gate gate;
  World alone;
  std::thread opener;
  {
    SaveRequest request = request_for(model, dir.path(), "c");
    request.tensors = [&](const Descriptor& d, int rank) {
      ++asked;
      gate.wait();
      return model.locals()(d, rank);
    };
    Save save(native(), buckets, plan, request, alone, Save::Where::kOnAThread);
    opener = std::thread([&] { gate.open(); });
  }
  opener.join();
  EXPECT_LE(asked, static_cast<int>(model.descriptors.size()));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Save, ReportsASavedCheckpointThatIsNotTheLatest) {
  const TemporaryDirectory dir;
  const Model model = small_model();
  const BucketPair buckets(4096);
  SaveRequest request = request_for(model, dir.path(), "c");
  request.on_published = [] { throw storage_error("no link can be made"); };
  const std::string error = error_of(
      [&] { CheckpointWriter(native(), buckets).save(plan_save(model.save_tensors(), {}, native()), request); });
  EXPECT_NE(error.find("was saved, but 'latest' may not name it"), std::string::npos) << error;
  EXPECT_NE(error.find("no link can be made"), std::string::npos) << error;
  expect_holds(dir / "c", model, {});
}

// The sources have boxes of rows, columns and flat ranges.
TEST(ReaderAsSource, GivesAnotherFormatTheSameBytes) {
  const TemporaryDirectory dir;
  const Model model = sharded_model();
  const BucketPair buckets(4096);
  for (const MeshShape& mesh : {mesh_of(1, 1), mesh_of(2, 2), mesh_of(3, 1), mesh_of(1, 4)}) {
    CheckpointWriter(native(), buckets)
        .save(plan_save(model.save_tensors(), mesh, native()), request_for(model, dir.path(), "from", 7, mesh));
    CheckpointReader reader(dir / "from", native());
    std::vector<SaveTensor> whole;
    for (const Descriptor& d : model.descriptors)
      whole.push_back(SaveTensor::plain(Descriptor::plain(d.fqn, d.dtype, d.global_shape)));
    SaveRequest request;
    request.parent = dir.path();
    request.name = "to";
    request.source = reader.source();
    CheckpointWriter(huggingface(), buckets).save(plan_save(whole, {}, huggingface()), request);
    EXPECT_TRUE(verify_checkpoint(dir / "to", buckets).ok()) << mesh.text();
    request.name = "direct";
    request.source = nullptr;
    request.tensors = model.locals();
    CheckpointWriter(huggingface(), buckets).save(plan_save(whole, {}, huggingface()), request);
    EXPECT_EQ(read_file(dir / "to/model.safetensors"), read_file(dir / "direct/model.safetensors")) << mesh.text();
  }
}

TEST(ReaderAsSource, CastsAndFindsDamage) {
  const TemporaryDirectory dir;
  Model model;
  model.add("w", Dtype::f32, {400, 300});
  const BucketPair buckets(4096);
  CheckpointWriter(native(), buckets)
      .save(plan_save(model.save_tensors(), {}, native()), request_for(model, dir.path(), "from"));
  const auto half = [&](const std::string& name) {
    CheckpointReader reader(dir / "from", native());
    SaveTensor tensor = SaveTensor::plain(model.descriptors[0]);
    tensor.disk_dtype = Dtype::bf16;
    SaveRequest request;
    request.parent = dir.path();
    request.name = name;
    request.source = reader.source();
    CheckpointWriter(huggingface(), buckets).save(plan_save({tensor}, {}, huggingface()), request);
  };
  half("to");
  Model wanted;
  wanted.add("w", Dtype::bf16, {400, 300});
  wanted.wholes["w"] = model.wholes["w"].to(Dtype::bf16);
  CheckpointReader reader(dir / "to", huggingface());
  EXPECT_TRUE(same_bytes(load_all(reader, wanted.load_tensors(), buckets).at("w"), wanted.wholes["w"]));

  std::string file;
  for (const auto& entry : fs::recursive_directory_iterator(dir / "from"))
    if (entry.path().extension() == ".safetensors") file = entry.path().string();
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 4);
  write_text(file, bytes);
  const std::string error = error_of([&] { half("never"); });
  EXPECT_NE(error.find("tensor 'w' in '"), std::string::npos) << error;
  EXPECT_NE(error.find("is damaged"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(dir / "never"));
}

}  // namespace
}  // namespace chassis
