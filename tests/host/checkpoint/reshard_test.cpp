// Reshards tensors among running ranks, over a real backend.
#include "host/checkpoint/reshard.hpp"

#include "ranks.hpp"

namespace chassis {
namespace {

using namespace testing;

void expect_ranks_reshard(int num_ranks, const std::function<void(Communicator&)>& body) {
  const auto ends =
      test::run_ranks(num_ranks, {}, [&](Communicator& communicator, test::RankPlugins&) { body(communicator); });
  for (const test::RankEnd& end : ends) EXPECT_FALSE(end.failed) << end.text;
}

Tensor empty_local(const Layout& layout, int rank) {
  const Shape shape = layout.local_shape(rank);
  Tensor out = Tensor::empty(std::vector<int64_t>(shape.begin(), shape.end()), layout.descriptor().dtype);
  if (out.num_bytes() > 0) std::memset(out.data(), 0xEE, out.num_bytes());
  return out;
}

// The same tensors, each with the placements of another tensor with the same number of dims.
Model rotated(const Model& model) {
  Model out = model;
  for (size_t i = 0; i < out.descriptors.size(); ++i) {
    Descriptor& d = out.descriptors[i];
    for (size_t k = 1; k < out.descriptors.size(); ++k) {
      const Descriptor& other = model.descriptors[(i + k) % model.descriptors.size()];
      if (other.global_shape.ndim() != d.global_shape.ndim()) continue;
      d.placements = other.placements;
      break;
    }
  }
  return out;
}

std::vector<ReshardTensor> tensors_between(const Model& a, const MeshShape& mesh_a, const Model& b,
                                           const MeshShape& mesh_b) {
  std::vector<ReshardTensor> out;
  for (size_t i = 0; i < a.descriptors.size(); ++i)
    out.push_back({Layout(a.descriptors[i], mesh_a), Layout(b.descriptors[i], mesh_b)});
  return out;
}

TEST(ReshardRun, MovesEveryElementFromAnyMeshToAnyOther) {
  const Model a = sharded_model(), b = rotated(a);
  const std::vector<MeshShape> meshes = {mesh_of(4, 1), mesh_of(2, 2), mesh_of(1, 4), mesh_of(3, 1), mesh_of(1, 1)};
  expect_ranks_reshard(4, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    for (const MeshShape& mesh_a : meshes)
      for (const MeshShape& mesh_b : meshes)
        for (const uint64_t budget : {64, 100'000}) {
          const std::vector<ReshardTensor> tensors = tensors_between(a, mesh_a, b, mesh_b);
          std::map<std::string, Tensor> arrived;
          ReshardRequest request;
          request.tensors = tensors;
          request.options.budget_bytes = static_cast<int64_t>(budget);
          request.from = a.locals(mesh_a);
          request.to = [&](const Descriptor& d, int r) { return arrived[d.fqn] = empty_local(Layout(d, mesh_b), r); };
          const ReshardResult result = reshard(request, communicator);
          // Alignment can double the bytes of a small move in a buffer.
          EXPECT_LE(std::max(result.sent_bytes, result.received_bytes), result.num_rounds * budget * 2);
          if (rank >= mesh_b.world_size()) continue;
          for (const Descriptor& d : b.descriptors) {
            if (numel(Layout(d, mesh_b).local_shape(rank)) == 0) continue;
            ASSERT_TRUE(same_bytes(arrived.at(d.fqn), b.local(d, mesh_b, rank)))
                << d.fqn << " from " << mesh_a.text() << " to " << mesh_b.text() << " on rank " << rank;
          }
        }
  });
}

TEST(ReshardRun, CastsOnTheReceiver) {
  Model a;
  Descriptor d = Descriptor::plain("w", Dtype::f32, {33, 7});
  d.placements = {Placement::dim_chunk({"dp"}, 0)};
  a.add(d);
  auto* values = a.wholes["w"].data_as<float>();
  for (int i = 0; i < 33 * 7; ++i) values[i] = static_cast<float>(i) * 0.37f - 20.0f;
  Descriptor to = d;
  to.dtype = Dtype::bf16;
  to.placements = {Placement::flat_range({"dp"})};
  const MeshShape mesh = mesh_of(2, 1);
  const std::vector<ReshardTensor> tensors = {{Layout(d, mesh), Layout(to, mesh)}};
  Model b;
  b.add(to);
  b.wholes["w"] = a.wholes["w"].to(Dtype::bf16);
  expect_ranks_reshard(2, [&](Communicator& communicator) {
    Tensor arrived;
    ReshardRequest request;
    request.tensors = tensors;
    request.from = a.locals(mesh);
    request.to = [&](const Descriptor&, int r) { return arrived = empty_local(tensors[0].to, r); };
    reshard(request, communicator);
    EXPECT_TRUE(same_bytes(arrived, b.local(to, mesh, communicator.rank())));
  });
}

// A whole model changes its sharding: only the tensors that are being moved exist twice.
TEST(ReshardRun, HoldsFewTensorsTwice) {
  constexpr int kNumTensors = 50;
  const MeshShape mesh = mesh_of(2, 1);
  Model a, b;
  for (int i = 0; i < kNumTensors; ++i) {
    Descriptor d = Descriptor::plain("t" + std::to_string(i), Dtype::f32, {64, 64});
    d.placements = {Placement::dim_chunk({"dp"}, 0)};
    a.add(d);
    d.placements = {Placement::dim_chunk({"dp"}, 1)};
    b.add(d);
  }
  const std::vector<ReshardTensor> tensors = tensors_between(a, mesh, b, mesh);
  expect_ranks_reshard(2, [&](Communicator& communicator) {
    std::map<std::string, Tensor> old_ones, new_ones;
    for (const Descriptor& d : a.descriptors) old_ones[d.fqn] = a.local(d, mesh, communicator.rank());
    size_t most = 0;
    uint32_t next = 0;
    ReshardRequest request;
    request.tensors = tensors;
    request.options.budget_bytes = 3 * 64 * 64 * 4 / 4;  // bytes that a rank sends of three tensors
    request.from = [&](const Descriptor& d, int) { return old_ones.at(d.fqn); };
    request.to = [&](const Descriptor& d, int r) {
      new_ones[d.fqn] = empty_local(Layout(d, mesh), r);
      most = std::max(most, old_ones.size() + new_ones.size());
      return new_ones[d.fqn];
    };
    request.on_done = [&](uint32_t tensor) {
      EXPECT_EQ(tensor, next++);
      old_ones.erase(tensors[tensor].from.descriptor().fqn);
    };
    reshard(request, communicator);
    EXPECT_EQ(next, static_cast<uint32_t>(kNumTensors));
    EXPECT_TRUE(old_ones.empty());
    EXPECT_LE(most, static_cast<size_t>(kNumTensors + 4));
    for (const Descriptor& d : b.descriptors)
      EXPECT_TRUE(same_bytes(new_ones.at(d.fqn), b.local(d, mesh, communicator.rank()))) << d.fqn;
  });
}

TEST(FillReplicas, GivesAllHoldersWhatOwnersRead) {
  const TemporaryDirectory dir;
  const BucketPair buckets(4096);
  Model model = sharded_model();
  for (Descriptor& d : model.descriptors) d.owner = OwnerRule::kSpread;
  for (const MeshShape& mesh : {mesh_of(4, 1), mesh_of(2, 2), mesh_of(1, 4)}) {
    const std::string name = std::to_string(mesh.size(0)) + "x" + std::to_string(mesh.size(1));
    CheckpointWriter(huggingface(), buckets)
        .save(plan_save(model.save_tensors(), mesh, huggingface()), request_for(model, dir.path(), name, 0, mesh));
    std::atomic<uint64_t> bytes_read = 0;
    test::RankSetup setup;
    setup.axes = mesh.axes();
    const auto ends = test::run_ranks(4, setup, [&](Communicator& communicator, test::RankPlugins&) {
      const BucketPair mine(4096);
      std::map<std::string, Tensor> local;
      for (const Descriptor& d : model.descriptors) local[d.fqn] = empty_local(Layout(d, mesh), communicator.rank());
      const LocalTensors tensors = [&](const Descriptor& d, int) { return local.at(d.fqn); };
      LoadOptions options;
      options.rank = communicator.rank();
      options.owned_only = true;
      CheckpointReader reader(dir / name, huggingface());
      bytes_read += reader.load(model.load_tensors(), mesh, mine, tensors, options).num_bytes;
      fill_replicas(model.descriptors, tensors, Device{}, 4096, communicator);
      for (const Descriptor& d : model.descriptors)
        EXPECT_TRUE(same_bytes(local.at(d.fqn), model.local(d, mesh, communicator.rank()))) << d.fqn;
    });
    for (const test::RankEnd& end : ends) EXPECT_FALSE(end.failed) << end.text;
    uint64_t model_bytes = 0;
    for (const auto& [fqn, tensor] : model.wholes) model_bytes += tensor.num_bytes();
    EXPECT_EQ(bytes_read, model_bytes);
  }
}

}  // namespace
}  // namespace chassis
