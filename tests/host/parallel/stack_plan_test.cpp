// The plan without strategies: one rank that holds every parameter whole; plans next to each other; and an axis that
// divides rows and parameters.
// tests/host/conformance/program_test.cpp and tests/regress run steps with strategies.
#include "host/parallel/stack_plan.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/parallel/divisions.hpp"
#include "host/state/cover.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"
#include "tests/support/one_rank.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

class StackWithoutStrategies : public testing::Test {
 protected:
  void make(Dtype compute) {
    parameters_ = ParameterTable(program_, layout_, {.compute = compute});
    storage_.emplace(parameters_, Device{});
    parameters_.initialize(7);
    rank_ = std::make_unique<test::OneRank>(program_, parameters_);
  }
  const StackPlan& plan() { return rank_->ranks().plan; }
  StackEvents& events() { return rank_->ranks().events(); }
  StackPlan plan_of(const StackContext& facts) {
    return {std::make_shared<Strategies>(std::vector<StackMember>()), program_, parameters_, facts};
  }

  Program program_ = test::SmallModel{}.program();
  ProgramLayout layout_;
  ParameterTable parameters_{program_, layout_};
  std::optional<ParameterStorage> storage_;
  std::unique_ptr<test::OneRank> rank_;
};

TEST_F(StackWithoutStrategies, IsOneRankOnTheAxisThatTakesTheRest) {
  make(Dtype::f32);
  EXPECT_EQ(plan().strategies().home_axis({}), "dp_shard");
  EXPECT_EQ(plan().num_data_ranks(), 1);
  EXPECT_EQ(plan().data_rank(), 0);
  EXPECT_TRUE(plan().strategies().savings().empty());
}

TEST_F(StackWithoutStrategies, LetsOpsReadTheStoredTensors) {
  make(Dtype::f32);
  std::vector<const void*> before;
  for (const auto& p : parameters_.all()) before.push_back(p->value.data());
  for (int step = 0; step < 2; ++step) {
    events().refresh();
    events().finish_step();
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const Parameter& p = *parameters_.all()[i];
    EXPECT_EQ(p.value.data(), before[i]) << p.name;
    EXPECT_EQ(p.value.data(), p.shard.data()) << p.name << " is copied";
  }
  EXPECT_EQ(events().shards().gathered_bytes(), 0u);
  EXPECT_TRUE(rank_->ranks().communicator.take_counts().empty());
}

TEST_F(StackWithoutStrategies, CastsParametersStoredInAnotherDtype) {
  make(Dtype::bf16);
  for (const auto& p : parameters_.all()) p->shard.fill(3.0);
  events().refresh();
  for (const auto& p : parameters_.all()) {
    EXPECT_EQ(p->value.dtype(), Dtype::bf16);
    const Tensor value = p->value.to(Dtype::f32);
    for (int64_t i = 0; i < value.num_elements(); ++i) ASSERT_EQ(value.data_as<float>()[i], 3.0f) << p->name;
  }
}

TEST_F(StackWithoutStrategies, LeavesGradientsAsTheyAre) {
  make(Dtype::f32);
  Parameter& p = *parameters_.all()[0];
  p.gradient = Tensor::zeros(p.local_shape, Dtype::f32);
  p.gradient_written = true;
  events().finish_grads();
  EXPECT_EQ(p.step_gradient().data(), p.gradient.data());
  EXPECT_FALSE(p.reduced);
}

TEST_F(StackWithoutStrategies, LeavesThePlacementsOfTheProgram) {
  parameters_.place(MeshShape({{"tp", 2}}), 1);
  Descriptor& embed = parameters_.find("embed.weight")->descriptor;
  embed.placements.push_back(Placement::dim_chunk({"tp"}, 0));
  const Descriptor before = embed;
  plan_of({}).place(parameters_);
  EXPECT_EQ(parameters_.mesh(), MeshShape({{"tp", 2}}));
  EXPECT_EQ(parameters_.rank(), 1);
  EXPECT_EQ(embed.placements, before.placements);
  EXPECT_EQ(embed.owner, before.owner);
}

TEST_F(StackWithoutStrategies, ChangesNoParameterWhileItIsMade) {
  Parameter& embed = *parameters_.find("embed.weight");
  embed.partial_over = {"tp"};
  const Descriptor before = embed.descriptor;
  const StackPlan first = plan_of({}), second = plan_of({});
  EXPECT_EQ(embed.descriptor, before);
  EXPECT_EQ(first.placements()[0].partial_over, std::vector<std::string>{"tp"});
  EXPECT_EQ(second.here().parameters, first.here().parameters);
}

TEST_F(StackWithoutStrategies, CanBeBoundAgainBetweenTwoSteps) {
  make(Dtype::f32);
  events().refresh();
  events().finish_step();
  std::vector<const void*> before;
  for (const auto& p : parameters_.all()) before.push_back(p->value.data());
  rank_ = std::make_unique<test::OneRank>(program_, parameters_);
  events().refresh();
  events().finish_step();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(parameters_.all()[i]->value.data(), before[i]);
}

TEST_F(StackWithoutStrategies, RefusesAMeshOfSeveralRanks) {
  StackContext facts;
  facts.mesh = MeshShape({{"dp_shard", 2}});
  EXPECT_HAS(test::refusal([&] { plan_of(facts); }),
             "mesh.dp_shard = 2, but no strategy of [[parallel]] serves this axis");
}

class StackPlanTest : public testing::Test {
 protected:
  std::shared_ptr<Strategies> strategies(const std::string& id) {
    std::vector<StackMember> members;
    members.push_back({plugins_.make("parallel", id), {}});
    return std::make_shared<Strategies>(std::move(members));
  }
  StackPlan plan_of(const std::string& id) {
    StackContext facts;
    facts.mesh = MeshShape({{"dp_shard", 2}});
    facts.rank = 1;
    return {strategies(id), program_, parameters_, facts};
  }
  const std::vector<Placement>& placements() const {
    return parameters_.find("layers.0.up.weight")->descriptor.placements;
  }

  test::LoadedPlugins plugins_;
  Program program_ = test::SmallModel{}.program();
  ProgramLayout layout_;
  ParameterTable parameters_{program_, layout_};
  const std::vector<Placement> by_rows_ = {Placement::dim_chunk({"dp_shard"}, 0)};
  const std::vector<Placement> by_ranges_ = {Placement::flat_range({"dp_shard"})};
};

TEST_F(StackPlanTest, ReplacesThePlacementsOfAnotherPlan) {
  const StackPlan rows = plan_of("fsdp2");
  EXPECT_TRUE(placements().empty()) << "a plan that is made changes nothing";
  rows.place(parameters_);
  EXPECT_EQ(placements(), by_rows_);
  EXPECT_EQ(parameters_.rank(), 1);
  const StackPlan ranges = plan_of("zero");
  EXPECT_EQ(placements(), by_rows_);
  ranges.place(parameters_);
  EXPECT_EQ(placements(), by_ranges_);
  rows.place(parameters_);
  EXPECT_EQ(placements(), by_rows_);
}

TEST_F(StackPlanTest, IsTheSameForAnotherRank) {
  const StackPlan rows = plan_of("fsdp2");
  const StackPlan other = rows.at_rank(0, strategies("fsdp2"), program_, parameters_);
  EXPECT_EQ(rows.data_rank(), 1);
  EXPECT_EQ(other.data_rank(), 0);
  ASSERT_EQ(other.placements().size(), rows.placements().size());
  for (size_t i = 0; i < rows.placements().size(); ++i)
    EXPECT_EQ(other.placements()[i].rule, rows.placements()[i].rule) << parameters_.all()[i]->name;
  other.place(parameters_);
  EXPECT_EQ(placements(), by_rows_);
  EXPECT_EQ(parameters_.rank(), 0);
}

TEST_F(StackPlanTest, IsBoundOnlyToTheParametersThatItPlaced) {
  const StackPlan rows = plan_of("fsdp2");
  const ParameterStorage storage(parameters_, Device{});
  test::AloneCommunicator alone;
  EXPECT_HAS(test::refusal([&] { const StackEvents events(rows, parameters_, alone, Device{}); }),
             "the parameters are placed by another plan");
}

// A mesh whose axis "ep" divides the batch and the dim "ffn", so that its ranks have parts of some parameters.
class ExpertsTest : public testing::Test {
 protected:
  using Axes = std::vector<std::string>;

  ExpertsTest() {
    const DimId ffn = *program_.find_dim("ffn");
    for (BlockType& block : program_.blocks)
      for (ParameterSlot& slot : block.slots)
        slot.sharding = {slot.has(ffn) ? Sharding{Sharding::Kind::kShard, ffn} : Sharding{}};
    parameters_ = ParameterTable(program_, layout_, {});
  }
  std::unique_ptr<Instance> make(const std::string& id, bool flag) {
    if (id != "own_axis") return plugins_.make("parallel", id, {{"dim", "ffn"}, {"sequence", flag}});
    return plugins_.make("parallel", id, {{"dim", "ffn"}, {"shards", flag}, {"differ", ""}});
  }
  StackPlan plan_of(std::vector<std::unique_ptr<Instance>> instances, int rank = 0) {
    std::vector<StackMember> members;
    for (auto& instance : instances) members.push_back({std::move(instance), {}});
    StackContext facts;
    facts.mesh = mesh_;
    facts.rank = rank;
    return {std::make_shared<Strategies>(std::move(members)), program_, parameters_, facts};
  }
  StackPlan with_fsdp2(int rank = 0) {
    std::vector<std::unique_ptr<Instance>> instances;
    instances.push_back(plugins_.make("parallel", "fsdp2"));
    instances.push_back(make("own_experts", false));
    return plan_of(std::move(instances), rank);
  }
  StackPlan alone(bool shards) {
    mesh_ = MeshShape({{"ep", 2}});
    std::vector<std::unique_ptr<Instance>> instances;
    instances.push_back(make("own_axis", shards));
    return plan_of(std::move(instances));
  }
  const ParameterPlacement& placement(const StackPlan& plan, const std::string& name) const {
    const auto& all = parameters_.all();
    return plan.placements()[static_cast<size_t>(std::ranges::find(all, name, &Parameter::name) - all.begin())];
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  Program program_ = test::SmallModel{}.program();
  MeshShape mesh_ = MeshShape({{"dp_shard", 2}, {"ep", 2}});
  ProgramLayout layout_{{{"ep", 2}}};
  ParameterTable parameters_{program_, layout_};
  const std::string divided_ = "layers.0.up.weight", whole_ = "layers.0.norm.weight";
};

TEST_F(ExpertsTest, DivideTheBatchAlongBothAxes) {
  EXPECT_EQ(with_fsdp2().num_data_ranks(), 4);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(with_fsdp2(rank).data_rank(), rank);
}

TEST_F(ExpertsTest, SumGradientsOverTheRanksThatHaveTheSameElements) {
  const StackPlan plan = with_fsdp2();
  EXPECT_EQ(placement(plan, divided_).rule.axes, Axes{"dp_shard"});
  EXPECT_EQ(placement(plan, divided_).rule.replica_axes, Axes{});
  EXPECT_EQ(placement(plan, whole_).rule.axes, Axes{"dp_shard"});
  EXPECT_EQ(placement(plan, whole_).rule.replica_axes, Axes{"ep"});
}

TEST_F(ExpertsTest, AreNotSharded) {
  const StackPlan shards = alone(true);
  EXPECT_EQ(placement(shards, divided_).rule.kind, CHASSIS_SHARD_REPLICATE);
  EXPECT_EQ(placement(shards, divided_).rule.axes, Axes{});
  EXPECT_EQ(placement(shards, divided_).rule.replica_axes, Axes{});
  EXPECT_EQ(placement(shards, whole_).rule.kind, CHASSIS_SHARD_FLAT);
  EXPECT_EQ(placement(shards, whole_).rule.axes, Axes{"ep"});
}

TEST_F(ExpertsTest, AreNotReplicated) {
  const StackPlan replicas = alone(false);
  EXPECT_EQ(placement(replicas, divided_).rule.replica_axes, Axes{});
  EXPECT_EQ(placement(replicas, whole_).rule.replica_axes, Axes{"ep"});
}

// A norm counts what ranks own, and a checkpoint contains it.
TEST_F(ExpertsTest, HaveOneOwnerOfEachElement) {
  with_fsdp2().place(parameters_);
  std::vector<Layout> layouts;
  for (const auto& p : parameters_.all()) layouts.emplace_back(p->descriptor, mesh_);
  prove_cover(layouts);
  const Layout divided(parameters_.find(divided_)->descriptor, mesh_),
      whole(parameters_.find(whole_)->descriptor, mesh_);
  EXPECT_EQ(divided.num_replicas(), 1);
  EXPECT_EQ(whole.num_replicas(), 2);
  EXPECT_EQ(divided.boxes(0), std::vector{(Box{{0, 0}, {2, 4}})});
  EXPECT_EQ(divided.boxes(1), std::vector{(Box{{3, 0}, {5, 4}})});
  EXPECT_EQ(divided.boxes(2), std::vector{(Box{{2, 0}, {3, 4}})});
  EXPECT_EQ(divided.boxes(3), std::vector{(Box{{5, 0}, {6, 4}})});
}

TEST_F(ExpertsTest, AreInitializedAsPartsOfTheWhole) {
  ParameterTable all(test::SmallModel{}.program(), {});
  const ParameterStorage whole_storage(all, Device{});
  all.initialize(7);
  const Tensor whole = all.find(divided_)->shard;
  with_fsdp2(1).place(parameters_);
  const ParameterStorage storage(parameters_, Device{});
  parameters_.initialize(7);
  const Tensor part = parameters_.find(divided_)->shard;
  ASSERT_EQ(part.num_elements(), 2 * 4);
  for (int64_t i = 0; i < part.num_elements(); ++i)
    EXPECT_EQ(part.data_as<float>()[i], whole.data_as<float>()[3 * 4 + i]);
}

TEST_F(ExpertsTest, CannotDivideTheirSequences) {
  std::vector<StackMember> members;
  members.push_back({make("own_experts", true), {}});
  const Strategies strategies(std::move(members));
  EXPECT_HAS(test::refusal([&] { ask_divisions(strategies[0], mesh_, 0, program_); }),
             "sequence parallelism along axis 'ep', whose ranks have different rows");
}

}  // namespace
}  // namespace chassis
