// The stack without members: one rank that holds every parameter whole. tests/host/conformance/program_test.cpp and
// tests/regress test it with strategies.
#include "host/parallel/parallel_stack.hpp"

#include <gtest/gtest.h>

#include "tests/support/expect_has.hpp"
#include "tests/support/one_rank.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

class StackWithoutMembers : public testing::Test {
 protected:
  void make(Dtype compute) {
    parameters_.set_precision(compute);
    parameters_.allocate({});
    parameters_.initialize(7);
    rank_ = std::make_unique<test::OneRank>(program_, parameters_);
  }
  ParallelStack& stack() { return rank_->ranks().stack; }

  Program program_ = test::SmallModel{}.program();
  ProgramLayout layout_;
  ParameterTable parameters_{program_, layout_};
  std::unique_ptr<test::OneRank> rank_;
};

TEST_F(StackWithoutMembers, IsOneRankOnTheAxisThatTakesTheRest) {
  make(Dtype::f32);
  EXPECT_EQ(stack().home_axis({}), "dp_shard");
  EXPECT_EQ(stack().num_data_ranks(), 1);
  EXPECT_EQ(stack().data_rank(), 0);
  EXPECT_TRUE(stack().savings().empty());
}

TEST_F(StackWithoutMembers, LetsOpsReadTheStoredTensors) {
  make(Dtype::f32);
  std::vector<const void*> before;
  for (const auto& p : parameters_.all()) before.push_back(p->value.data());
  for (int step = 0; step < 2; ++step) {
    stack().refresh();
    stack().finish_step();
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = *parameters_.all()[i];
    EXPECT_EQ(p.value.data(), before[i]) << p.name;
    EXPECT_EQ(p.value.data(), p.shard.data()) << p.name << " is copied";
  }
  EXPECT_EQ(stack().shards().gathered_bytes(), 0u);
  EXPECT_TRUE(rank_->ranks().communicator.take_counts().empty());
}

TEST_F(StackWithoutMembers, CastsParametersStoredInAnotherDtype) {
  make(Dtype::bf16);
  for (const auto& p : parameters_.all()) p->shard.fill(3.0);
  stack().refresh();
  for (const auto& p : parameters_.all()) {
    EXPECT_EQ(p->value.dtype(), Dtype::bf16);
    const Tensor value = p->value.to(Dtype::f32);
    for (int64_t i = 0; i < value.num_elements(); ++i) ASSERT_EQ(value.data_as<float>()[i], 3.0f) << p->name;
  }
}

TEST_F(StackWithoutMembers, LeavesGradientsAsTheyAre) {
  make(Dtype::f32);
  Parameter& p = *parameters_.all()[0];
  p.gradient = Tensor::zeros(p.local_shape, Dtype::f32);
  p.gradient_written = true;
  stack().finish_grads();
  EXPECT_EQ(p.step_gradient().data(), p.gradient.data());
  EXPECT_FALSE(p.reduced);
}

TEST_F(StackWithoutMembers, LeavesThePlacementsOfTheProgram) {
  parameters_.place(MeshShape({{"tp", 2}}), 1);
  Descriptor& embed = parameters_.find("embed.weight")->descriptor;
  embed.placements.push_back(Placement::dim_chunk({"tp"}, 0));
  const Descriptor before = embed;
  ParallelStack stack{{}};
  stack.resolve(program_, parameters_, {});
  EXPECT_EQ(parameters_.mesh(), MeshShape({{"tp", 2}}));
  EXPECT_EQ(parameters_.rank(), 1);
  EXPECT_EQ(embed.placements, before.placements);
  EXPECT_EQ(embed.owner, before.owner);
}

TEST_F(StackWithoutMembers, RefusesAMeshOfSeveralRanks) {
  ParallelStack stack{{}};
  StackContext facts;
  facts.mesh = MeshShape({{"dp_shard", 2}});
  EXPECT_HAS(test::refusal([&] { stack.resolve(program_, parameters_, facts); }),
             "mesh.dp_shard = 2, but no strategy of [[parallel]] serves this axis");
}

}  // namespace
}  // namespace chassis
