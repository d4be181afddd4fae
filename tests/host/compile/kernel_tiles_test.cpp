// Nodes whose tile needs more shared memory than a block of threads may use, and lists of tiles that are not valid.
#include "host/compile/kernel_tiles.hpp"

#include <gtest/gtest.h>

#include "host/compile/parameters.hpp"
#include "host/compile/resolve.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"
#include "tests/support/stub_provider.hpp"

namespace chassis {
namespace {

using test::SmallModel;
using test::StubNode;
using test::StubProvider;

constexpr uint64_t kLimit = 100'000;

// A program of which `tiled` computes the op activation with its tiles, and `plain` all other ops.
class KernelTiles : public testing::Test {
 protected:
  KernelTiles() {
    options_.kernels = {tiled_.provider(), plain_.provider()};
    options_.batch = 2;
    options_.time = 3;
    options_.shared_limit_bytes = kLimit;
    tiled_.plan = [this](const StubNode&, chassis_infer_t& out) {
      out.tiles = tiles_.data();
      out.num_tiles = static_cast<uint32_t>(tiles_.size());
      out.tile = used_;
    };
  }
  static std::vector<std::string> all_but_activation() {
    std::vector<std::string> ops = StubProvider::every_op();
    std::erase(ops, "activation");
    return ops;
  }
  ResolvedProgram resolve() const { return resolve_program(program_, layout_, parameters_, options_); }
  std::string refusal() const {
    return test::refusal([this] { resolve(); });
  }
  static const Node& activation(const ResolvedProgram& program) { return program.units[1]->nodes[2]; }

  std::vector<chassis_tile_t> tiles_ = {
      {128, 64, 90'000, 140'000}, {64, 64, 50'000, 100'000}, {64, 32, 30'000, 60'000}};
  uint32_t used_ = 0;
  StubProvider tiled_{"tiled", {"activation"}}, plain_{"plain", all_but_activation()};
  Program program_ = SmallModel{}.program();
  ProgramLayout layout_;
  ParameterTable parameters_{program_, layout_};
  ResolveOptions options_;
};

TEST_F(KernelTiles, ThatFitAreKept) {
  used_ = 1;  // its backward needs exactly the limit
  const ResolvedProgram program = resolve();
  tiles_.clear();  // the host has copies
  const Node& node = activation(program);
  EXPECT_EQ(node.provider->name, "tiled");
  ASSERT_EQ(node.tiles.size(), 3u);
  EXPECT_EQ(tile_text(node.tiles[node.infer.tile]), "64 × 64");
  EXPECT_EQ(node.infer.tiles, nullptr);
}

TEST_F(KernelTiles, ThatDoNotFitInBackwardAreRefusedWithBothNumbersAndThoseThatFit) {
  EXPECT_HAS(refusal(),
             "no provider computes activation 'layer.gelu'\n  tiled (activation): its tile 128 × 64 (queries × keys) "
             "needs 140000 bytes of shared memory in backward, and a block of threads on cpu may use 100000; of its 3 "
             "tiles these fit: 64 × 64, 64 × 32");
  tiles_[1].shared_backward_bytes = kLimit + 1;
  EXPECT_HAS(refusal(), "; of its 3 tiles one fits: 64 × 32");
  EXPECT_EQ(tiled_.live_kernels, 0);
}

TEST_F(KernelTiles, NeedTheMemoryOfBackwardOnlyInTraining) {
  options_.purpose = Purpose::kLoss;
  EXPECT_EQ(activation(resolve()).provider->name, "tiled");
  tiles_[0].shared_forward_bytes = 120'000;
  EXPECT_HAS(refusal(), "needs 120000 bytes of shared memory in forward, and a block of threads on cpu may use 100000");
}

TEST_F(KernelTiles, MayAllBeTooLarge) {
  options_.shared_limit_bytes = 20'000;
  EXPECT_HAS(refusal(),
             "needs 90000 bytes of shared memory in forward and 140000 in backward, and a block of threads on cpu may "
             "use 20000; none of its 3 tiles fits");
  tiles_.resize(1);
  EXPECT_HAS(refusal(), " may use 20000; it lists no other tile");
}

TEST_F(KernelTiles, ThatDoNotFitLeaveTheNodeToTheNextProvider) {
  StubProvider all("all");
  options_.kernels = {tiled_.provider(), all.provider()};
  const ResolvedProgram program = resolve();
  const Node& node = activation(program);
  EXPECT_EQ(node.provider->name, "all");
  ASSERT_EQ(node.refusals.size(), 1u);
  EXPECT_EQ(node.refusals[0].provider, "tiled");
  EXPECT_HAS(node.refusals[0].reason, "its tile 128 × 64 (queries × keys) needs 140000 bytes");
  EXPECT_TRUE(node.tiles.empty());
}

TEST_F(KernelTiles, ThatDoNotFitLoseTheComparisonOfAuto) {
  StubProvider all("all");
  all.cost = [](const StubNode&) { return 10.0; };  // `tiled` is cheaper
  options_.kernels = {tiled_.candidate(), all.candidate()};
  const ResolvedProgram refused = resolve();
  EXPECT_EQ(activation(refused).provider->name, "all");
  EXPECT_EQ(activation(refused).candidates.size(), 1u);
  used_ = 2;
  const ResolvedProgram fits = resolve();
  EXPECT_EQ(activation(fits).provider->name, "tiled");
  EXPECT_EQ(activation(fits).candidates.size(), 2u);
}

TEST_F(KernelTiles, AreNotComparedWithoutALimit) {
  options_.shared_limit_bytes.reset();
  EXPECT_EQ(activation(resolve()).provider->name, "tiled");
}

TEST_F(KernelTiles, AreRefusedIfTheListIsNotValid) {
  const std::string context = "provider 'tiled' on layer.gelu: infer ";
  used_ = 3;
  EXPECT_HAS(refusal(), context + "chooses the tile with index 3, but num_tiles is 3");
  tiled_.plan = [](const StubNode&, chassis_infer_t& out) { out.tile = 1; };
  EXPECT_HAS(refusal(), context + "chooses the tile with index 1, but num_tiles is 0");
  tiled_.plan = [](const StubNode&, chassis_infer_t& out) { out.num_tiles = 2; };
  EXPECT_HAS(refusal(), context + "sets num_tiles to 2, but tiles is NULL");
  tiled_.plan = [this](const StubNode&, chassis_infer_t& out) { out.tiles = tiles_.data(), out.num_tiles = 65; };
  EXPECT_HAS(refusal(), context + "lists 65 tiles; the maximum is 64");
  options_.shared_limit_bytes.reset();
  tiles_[2].keys = 0;
  tiled_.plan = [this](const StubNode&, chassis_infer_t& out) { out.tiles = tiles_.data(), out.num_tiles = 3; };
  EXPECT_HAS(refusal(), context + "gives tile 2 the size 64 × 0 (queries × keys)");
}

}  // namespace
}  // namespace chassis
