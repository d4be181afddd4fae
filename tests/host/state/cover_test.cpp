// Faults that the cover proof finds, and its time for a million boxes.
#include "host/state/cover.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {
namespace {

using Cause = CoverFault::Cause;

bool mentions(const CoverFault& fault, const std::string& part) {
  return fault.message.find(part) != std::string::npos;
}

// Two ranks, and the two halves of a [8, 4] tensor that they may declare.
struct TwoRanks {
  Descriptor d = Descriptor::plain("w", Dtype::f32, {8, 4});
  std::vector<Box> top = {{{0, 0}, {4, 4}}}, bottom = {{{4, 0}, {8, 4}}};
  Cover cover{2};
  CoverFault fault() const { return cover.faults().at(0); }
};

TEST(Cover, AcceptsAnExactCover) {
  TwoRanks t;
  t.cover.declare(t.d, 0, t.top);
  t.cover.declare(t.d, 1, t.bottom);
  EXPECT_TRUE(t.cover.faults().empty());
  EXPECT_NO_THROW(t.cover.prove());
}

TEST(Cover, NamesTheRankThatDeclaredNothing) {
  TwoRanks t;
  t.cover.declare(t.d, 0, t.top);
  const CoverFault fault = t.fault();
  EXPECT_EQ(fault.cause, Cause::kMissingRankState);
  EXPECT_EQ(fault.where, (Box{{4, 0}, {8, 4}}));
  EXPECT_EQ(fault.rank_a, 0);
  EXPECT_TRUE(mentions(fault, "'w'")) << fault.message;
  EXPECT_TRUE(mentions(fault, "nothing was declared by rank 1")) << fault.message;
  EXPECT_TRUE(mentions(fault, "exactly 1/2")) << fault.message;
}

TEST(Cover, ReportsThatOneShardOfEightWasDeclared) {
  // An optimizer state of 655360 elements in an 8-rank run, of which a save plan has only one rank's 81920.
  Descriptor d = Descriptor::plain("optimizer.state.940.exp_avg", Dtype::f32, {655360});
  d.placements = {Placement::dim_chunk({"dp_shard"}, 0)};
  const Layout layout(d, MeshShape({{"dp_shard", 8}}));
  Cover cover(8);
  cover.declare(layout, 3);
  for (int rank = 0; rank < 8; ++rank)
    if (rank != 3) cover.declare(d, rank, {});
  const CoverFault fault = cover.faults().at(0);
  EXPECT_EQ(fault.cause, Cause::kMissingRankState);
  EXPECT_TRUE(mentions(fault, "exactly 1/8 of it is declared")) << fault.message;
  EXPECT_EQ(fault.rank_b, 3);
}

TEST(Cover, NamesBothOwnersOfADuplicate) {
  TwoRanks t;
  t.cover.declare(t.d, 0, t.top);
  t.cover.declare(t.d, 1, t.top);
  const CoverFault fault = t.fault();
  EXPECT_EQ(fault.cause, Cause::kDuplicate);
  EXPECT_EQ(fault.rank_a, 0);
  EXPECT_EQ(fault.rank_b, 1);
  EXPECT_TRUE(mentions(fault, "[0:4, 0:4] are owned twice")) << fault.message;
}

TEST(Cover, FindsAGapAndAnOverlapOfEqualVolume) {
  TwoRanks t;
  t.cover.declare(t.d, 0, t.top);
  t.cover.declare(t.d, 1, std::vector<Box>{{{3, 0}, {7, 4}}});
  const CoverFault fault = t.fault();
  EXPECT_EQ(fault.cause, Cause::kOverlap);
  EXPECT_EQ(fault.where, (Box{{3, 0}, {4, 4}}));
}

TEST(Cover, DistinguishesPaddingFromOtherBoxesOutOfBounds) {
  TwoRanks t;
  t.d.padded_shape = Shape{10, 4};
  t.cover.declare(t.d, 0, t.top);
  t.cover.declare(t.d, 1, std::vector<Box>{{{4, 0}, {10, 4}}});
  EXPECT_EQ(t.fault().cause, Cause::kPadding);
  EXPECT_EQ(t.fault().rank_a, 1);

  TwoRanks u;
  u.cover.declare(u.d, 0, std::vector<Box>{{{4, 0}, {9, 4}}});
  EXPECT_EQ(u.fault().cause, Cause::kOutOfBounds);
  TwoRanks v;
  v.cover.declare(v.d, 0, std::vector<Box>{{{-1, 0}, {8, 4}}});
  EXPECT_EQ(v.fault().cause, Cause::kOutOfBounds);
}

TEST(Cover, RefusesTheShapeOfAShard) {
  // The embedding of a 70B under TP 8, declared with the 16064 rows of one shard.
  Cover cover(8);
  cover.expect(Descriptor::plain("model.embed_tokens.weight", Dtype::bf16, {128256, 8192}));
  const Descriptor shard = Descriptor::plain("model.embed_tokens.weight", Dtype::bf16, {16064, 8192});
  cover.declare(shard, 0, std::vector<Box>{Box::whole(shard.global_shape)});
  const CoverFault fault = cover.faults().at(0);
  EXPECT_EQ(fault.cause, Cause::kShapeDisagreement);
  EXPECT_TRUE(mentions(fault, "the model says its shape is [128256, 8192], rank 0 says [16064, 8192]"))
      << fault.message;
}

TEST(Cover, RefusesDtypesThatDisagree) {
  TwoRanks t;
  t.cover.declare(t.d, 0, t.top);
  t.d.dtype = Dtype::bf16;
  t.cover.declare(t.d, 1, t.bottom);
  EXPECT_EQ(t.fault().cause, Cause::kDtypeDisagreement);
  EXPECT_TRUE(mentions(t.fault(), "rank 0 says its dtype is f32, rank 1 says bf16")) << t.fault().message;
}

TEST(Cover, ReportsATensorThatNoRankDeclares) {
  Cover cover(2);
  cover.expect(Descriptor::plain("lm_head.weight", Dtype::f32, {8}));
  EXPECT_EQ(cover.faults().at(0).cause, Cause::kMissingRankState);
  EXPECT_TRUE(mentions(cover.faults()[0], "ranks 0-1")) << cover.faults()[0].message;
}

TEST(Cover, RefusesACutWithinABlock) {
  TwoRanks t;
  t.d.granularity = Granularity::block_of(32);
  t.cover.declare(t.d, 0, t.top);
  t.cover.declare(t.d, 1, t.bottom);
  EXPECT_EQ(t.fault().cause, Cause::kIllegalCut);
}

TEST(Cover, AcceptsScalarsAndEmptyTensors) {
  Cover cover(2);
  const Descriptor step = Descriptor::plain("step", Dtype::i64, {}),
                   none = Descriptor::plain("none", Dtype::f32, {0, 4});
  cover.declare(step, 0, std::vector<Box>{Box{}});
  cover.declare(none, 0, {});
  EXPECT_TRUE(cover.faults().empty());
  cover.declare(step, 1, std::vector<Box>{Box{}});
  EXPECT_EQ(cover.faults().at(0).cause, Cause::kDuplicate);
}

TEST(Cover, ThrowsTheFirstFaultAndCountsTheOthers) {
  Cover cover(1);
  for (const char* name : {"a", "b", "c"}) cover.expect(Descriptor::plain(name, Dtype::f32, {1}));
  try {
    cover.prove();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("'a'"), std::string::npos);
    EXPECT_NE(error.message().find("2 more tensors"), std::string::npos);
  }
}

TEST(Cover, IsProvenInSharesThatFindEveryFault) {
  const MeshShape mesh({{"dp", 2}});
  std::vector<Descriptor> tensors;
  for (int i = 0; i < 12; ++i) {
    Descriptor d = Descriptor::plain("t" + std::to_string(i), Dtype::f32, {8});
    d.placements = {Placement::flat_ranges({"dp"}, {{0, 4}, {i == 7 ? 5 : 4, i == 7 ? 3 : 4}})};
    tensors.push_back(d);
  }
  const auto error = [&](const Prover& prover) -> std::string {
    try {
      prove_cover(tensors, mesh, prover);
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const std::string whole = error({});
  EXPECT_NE(whole.find("tensor 't7' f32 [8]: elements [4:5] are owned by no rank"), std::string::npos) << whole;
  for (int prover = 0; prover < 5; ++prover) EXPECT_EQ(error({prover, 5}), prover == 7 % 5 ? whole : "") << prover;
  EXPECT_EQ(error({20, 21}), "");  // more provers than tensors
  tensors[7] = tensors[6];         // the same name twice
  EXPECT_NE(error({}).find("(declared twice by the same rank)"), std::string::npos) << error({});
  tensors[7].fqn = "t7";
  EXPECT_EQ(error({}), "");
}

// Time is printed but not asserted, since the machine may be busy. Memory is asserted.
class MillionChunks : public ::testing::Test {
 protected:
  void time(const char* what, const std::function<void(Cover&)>& declare, bool exact = true) {
    const std::clock_t start = std::clock();
    Cover cover(1024);
    declare(cover);
    const std::clock_t declared = std::clock();
    EXPECT_EQ(cover.faults().empty(), exact);
    const std::clock_t proven = std::clock();
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](std::clock_t ticks) { return static_cast<double>(ticks) / CLOCKS_PER_SEC; };
    std::printf("cover of %lld chunks, %s: declared in %.2f s, proven in %.2f s of CPU, process peak %ld MiB\n",
                static_cast<long long>(cover.num_claims()), what, seconds(declared - start), seconds(proven - declared),
                usage.ru_maxrss / 1024);
#ifndef __SANITIZE_ADDRESS__
    EXPECT_LT(usage.ru_maxrss, 1 << 20) << "KiB, the peak of all tests so far; at most 1 GiB";
#endif
  }
};

TEST_F(MillionChunks, OfOneTensorInRows) {
  const Descriptor d = Descriptor::plain("w", Dtype::f32, {1 << 20, 8});
  time("rows of one tensor", [&](Cover& cover) {
    for (int64_t k = 0; k < (1 << 20); ++k) {
      const Box box{{k, 0}, {k + 1, 8}};
      cover.declare(d, static_cast<int>(k % 1024), {&box, 1});
    }
  });
}

TEST_F(MillionChunks, OfOneTensorInAGridInRandomOrder) {
  const Descriptor d = Descriptor::plain("w", Dtype::f32, {4096, 4096});
  const auto declare = [&](int64_t num_chunks) {
    return [&d, num_chunks](Cover& cover) {
      for (int64_t k = 0; k < num_chunks; ++k) {
        const int64_t at = k * 611'953 % (1 << 20), row = at / 1024 * 4, column = at % 1024 * 4;
        const Box box{{row, column}, {row + 4, column + 4}};
        cover.declare(d, static_cast<int>(k % 1024), {&box, 1});
      }
    };
  };
  time("grid of one tensor", declare(1 << 20));
  time("the same without one chunk", declare((1 << 20) - 1), false);
}

TEST_F(MillionChunks, OfOneTensorOfFourDims) {
  const Descriptor d = Descriptor::plain("w", Dtype::f32, {64, 64, 64, 64});
  time("grid of four dims", [&](Cover& cover) {
    for (int64_t k = 0; k < (1 << 20); ++k) {
      Box box{{k >> 15 & 31, k >> 10 & 31, k >> 5 & 31, k & 31}, Shape::filled(4, 0)};
      for (int dim = 0; dim < 4; ++dim) box.begin[dim] *= 2, box.end[dim] = box.begin[dim] + 2;
      cover.declare(d, static_cast<int>(k % 1024), {&box, 1});
    }
  });
}

TEST_F(MillionChunks, OfAThousandTensorsOnAThousandRanks) {
  const MeshShape mesh({{"dp_shard", 128}, {"tp", 8}});
  time("1024 tensors, TP 8 and FSDP 128", [&](Cover& cover) {
    for (int tensor = 0; tensor < 1024; ++tensor) {
      Descriptor d = Descriptor::plain("model.layers." + std::to_string(tensor) + ".weight", Dtype::bf16, {4096, 4096});
      d.placements = {Placement::dim_chunk({"tp"}, tensor % 2), Placement::dim_chunk({"dp_shard"}, 0)};
      const Layout layout(d, mesh);
      for (int rank = 0; rank < mesh.world_size(); ++rank) cover.declare(layout, rank);
    }
  });
}

}  // namespace
}  // namespace chassis
