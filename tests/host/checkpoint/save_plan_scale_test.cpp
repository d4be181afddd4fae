// The save plan of one rank of many: what it keeps does not grow with the number of ranks. Bytes are those that
// operator new gives out in this process.
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "fixture.hpp"
#include "host/state/owners.hpp"

namespace {

std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

void* counted_new(std::size_t size) {
  void* const block = std::malloc(size);
  if (block == nullptr) throw std::bad_alloc();
  const int64_t now = live_bytes += static_cast<int64_t>(::malloc_usable_size(block));
  if (now > peak_bytes) peak_bytes = now;
  return block;
}
void counted_delete(void* block) {
  live_bytes -= static_cast<int64_t>(::malloc_usable_size(block));
  std::free(block);
}

}  // namespace

void* operator new(std::size_t size) { return counted_new(size); }
void* operator new[](std::size_t size) { return counted_new(size); }
void operator delete(void* block) noexcept { counted_delete(block); }
void operator delete[](void* block) noexcept { counted_delete(block); }
void operator delete(void* block, std::size_t) noexcept { counted_delete(block); }
void operator delete[](void* block, std::size_t) noexcept { counted_delete(block); }

namespace chassis {
namespace {

using namespace testing;

constexpr int64_t kMib = 1 << 20;
constexpr int kStages = 4, kTp = 8;

MeshShape mesh_of_ranks(int num_ranks) {
  return MeshShape({{"pp", kStages}, {"dp_shard", num_ranks / kStages / kTp}, {"tp", kTp}});
}

// The 723 tensors of Llama-3-70B with two optimizer states each: 4 stages, tp 8, FSDP.
std::vector<Descriptor> llama_70b(const MeshShape& mesh) {
  std::vector<Descriptor> tensors;
  const auto add = [&](const std::string& name, int stage, int tp_dim, const Shape& shape) {
    for (const char* state : {"", ".exp_avg", ".exp_avg_sq"}) {
      Descriptor d = Descriptor::plain(name + state, Dtype::f32, shape);
      d.placements = {Placement::only_on({"pp"}, stage)};
      if (tp_dim >= 0) d.placements.push_back(Placement::dim_chunk({"tp"}, tp_dim));
      d.placements.push_back(Placement::dim_chunk({"dp_shard"}, 0));
      tensors.push_back(std::move(d));
    }
  };
  add("model.embed_tokens.weight", 0, 0, {128256, 8192});
  for (int i = 0; i < 80; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const int stage = i / 20;
    add(layer + "input_layernorm.weight", stage, -1, {8192});
    add(layer + "self_attn.q_proj.weight", stage, 0, {8192, 8192});
    add(layer + "self_attn.k_proj.weight", stage, 0, {1024, 8192});
    add(layer + "self_attn.v_proj.weight", stage, 0, {1024, 8192});
    add(layer + "self_attn.o_proj.weight", stage, 1, {8192, 8192});
    add(layer + "post_attention_layernorm.weight", stage, -1, {8192});
    add(layer + "mlp.gate_proj.weight", stage, 0, {28672, 8192});
    add(layer + "mlp.up_proj.weight", stage, 0, {28672, 8192});
    add(layer + "mlp.down_proj.weight", stage, 1, {8192, 28672});
  }
  add("model.norm.weight", kStages - 1, -1, {8192});
  add("lm_head.weight", kStages - 1, 0, {128256, 8192});
  balance_owners(tensors, mesh);
  return tensors;
}

struct Made {
  SavePlan plan;
  int64_t kept_bytes = 0;  // by the plan
  int64_t peak_bytes = 0;  // while it was made and proven
};

Made plan_of_rank(int num_ranks, int rank, const FormatPlugin& format, const Prover& prover = {}) {
  const MeshShape mesh = mesh_of_ranks(num_ranks);
  const auto start = std::chrono::steady_clock::now();
  const int64_t before = peak_bytes = live_bytes.load();
  std::vector<SaveTensor> tensors;
  for (Descriptor& d : llama_70b(mesh)) tensors.push_back(SaveTensor::plain(std::move(d)));
  const auto described = std::chrono::steady_clock::now();
  SavePlanOptions options;
  options.rank = rank;
  options.prover = prover;
  Made made{plan_save(std::move(tensors), mesh, format, options)};
  made.kept_bytes = live_bytes - before;
  made.peak_bytes = peak_bytes - before;
  const auto end = std::chrono::steady_clock::now();
  std::printf("%s, rank %d of %d, prover %d of %d: keeps %.1f MiB, peak %.1f MiB; owners %.2f s, plan %.2f s\n",
              format.name().c_str(), rank, num_ranks, prover.index, prover.count,
              static_cast<double>(made.kept_bytes) / kMib, static_cast<double>(made.peak_bytes) / kMib,
              std::chrono::duration<double>(described - start).count(),
              std::chrono::duration<double>(end - described).count());
  return made;
}

TEST(SavePlanOfOneRank, Of70BOn1024RanksTakesLessThan64MiB) {
  for (const FormatPlugin* format : {&native(), &huggingface()}) {
    plan_of_rank(128, 0, *format);  // allocates what is kept for good by the format and the C++ library
    for (const int rank : {0, 511, 1023}) {
      // One process proves all, as `chassis plan` does, or each rank its share.
      for (const Prover& prover : {Prover{}, Prover{rank, 1024}})
        EXPECT_LE(plan_of_rank(1024, rank, *format, prover).peak_bytes, 64 * kMib);
    }
  }
}

TEST(SavePlanOfOneRank, DoesNotGrowWithTheNumberOfRanks) {
  for (const FormatPlugin* format : {&native(), &huggingface()}) {
    plan_of_rank(128, 0, *format);
    const Made few = plan_of_rank(128, 0, *format), many = plan_of_rank(4096, 0, *format);
    EXPECT_EQ(many.plan.num_disk_tensors, 3u * 723);
    EXPECT_EQ(many.plan.boxes.size(), few.plan.boxes.size());
    EXPECT_EQ(many.plan.tensor_bytes, few.plan.tensor_bytes);
    EXPECT_LE(many.kept_bytes, few.kept_bytes + few.kept_bytes / 50);
  }
}

TEST(SavePlanOfOneRank, KnowsTheBoxesOfAllRanksWithoutKeepingThem) {
  const MeshShape mesh = mesh_of_ranks(64);
  std::vector<SaveTensor> tensors;
  for (Descriptor& d : llama_70b(mesh)) tensors.push_back(SaveTensor::plain(std::move(d)));
  const SavePlan all = plan_save(tensors, mesh, native());
  ASSERT_FALSE(all.own_files);
  for (const int rank : {0, 63}) {
    SavePlanOptions options;
    options.rank = rank;
    const SavePlan own = plan_save(tensors, mesh, native(), options);
    ASSERT_TRUE(own.own_files);
    size_t at = 0, num_own = 0;
    own.for_each_box([&](const DiskBox& box) {
      ASSERT_LT(at, all.boxes.size());
      const DiskBox& expected = all.boxes[at];
      ASSERT_EQ(std::tie(box.name, box.box, box.rank), std::tie(expected.name, expected.box, expected.rank)) << at;
      if (box.rank == rank) {
        ASSERT_EQ(own.boxes[num_own].box, box.box);
        const DiskPlace &place = own.layout.places[num_own], &in_all = all.layout.places[at];
        ASSERT_EQ(own.layout.files[place.file], all.layout.files[in_all.file]);
        ASSERT_EQ(place.offset, in_all.offset);
        ++num_own;
      }
      ++at;
    });
    EXPECT_EQ(at, all.boxes.size());
    EXPECT_EQ(num_own, own.boxes.size());
    EXPECT_EQ(own.bytes_of_rank(rank), all.bytes_of_rank(rank));
  }
  const Made large = plan_of_rank(1024, 0, native());
  const int64_t before = peak_bytes = live_bytes.load();
  int64_t num_boxes = 0;
  const auto start = std::chrono::steady_clock::now();
  large.plan.for_each_box([&](const DiskBox&) { ++num_boxes; });
  std::printf("%lld boxes of 1024 ranks in %.2f s, peak %.1f MiB\n", static_cast<long long>(num_boxes),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
              static_cast<double>(peak_bytes - before) / kMib);
  EXPECT_GT(num_boxes, 400'000);
  EXPECT_LE(peak_bytes - before, 32 * kMib);
}

// Each tensor has a shape of its own, so that no two are divided alike.
TEST(SavePlanOfOneRank, IsProvenOneTensorAtATime) {
  const MeshShape mesh({{"dp_shard", 1024}});
  std::vector<SaveTensor> tensors;
  for (int i = 0; i < 723; ++i) {
    Descriptor d = Descriptor::plain("t" + std::to_string(i), Dtype::f32, {8192 + i, 8192});
    d.placements = {Placement::flat_range({"dp_shard"})};
    tensors.push_back(SaveTensor::plain(d));
  }
  SavePlanOptions options;
  options.rank = 0;
  const int64_t before = peak_bytes = live_bytes.load();
  const auto start = std::chrono::steady_clock::now();
  plan_save(tensors, mesh, native(), options);
  std::printf("723 unlike tensors on 1024 ranks: %.2f s, peak %.1f MiB\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
              static_cast<double>(peak_bytes - before) / kMib);
  EXPECT_LE(peak_bytes - before, 64 * kMib);
}

}  // namespace
}  // namespace chassis
