#include "host/compile/parameters.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/compile/objective_pass.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

class Parameters : public testing::Test {
 protected:
  Program program_ = test::SmallModel{}.program();
  ProgramLayout layout_;
};

TEST_F(Parameters, AreStoredInFp32IfTheyAreTrained) {
  const ParameterTable parameters(program_, layout_, {Dtype::bf16, [](ParameterTable& all) {
                                                        for (const auto& p : all.all())
                                                          p->trainable = p->name == "embed.weight";
                                                      }});
  EXPECT_EQ(parameters.compute(), Dtype::bf16);
  for (const auto& p : parameters.all())
    EXPECT_EQ(p->descriptor.dtype, p->name == "embed.weight" ? Dtype::f32 : Dtype::bf16) << p->name;
}

TEST_F(Parameters, AreFreedWithTheirStorage) {
  ParameterTable parameters(program_, layout_);
  std::optional<ParameterStorage> storage(std::in_place, parameters, Device{});
  parameters.initialize(7);
  for (const auto& p : parameters.all()) p->gradient = Tensor::zeros(p->local_shape, Dtype::f32);
  std::optional<ParameterStorage> moved(std::move(storage));
  storage.reset();
  EXPECT_TRUE(parameters.all()[0]->value);
  moved.reset();
  for (const auto& p : parameters.all()) EXPECT_FALSE(p->value || p->shard || p->gradient) << p->name;
}

TEST_F(Parameters, OfTwoTablesShareTheTensorsThatBothFreeze) {
  const auto frozen_but = [&](const std::string& trained) {
    return ParameterOptions{Dtype::bf16, [trained](ParameterTable& all) {
                              for (const auto& p : all.all()) p->trainable = p->name == trained;
                            }};
  };
  ParameterTable lender(program_, layout_, frozen_but("")), parameters(program_, layout_, frozen_but("embed.weight"));
  const ParameterStorage lent(lender, Device{});
  const ParameterStorage storage(parameters, Device{}, &lender);
  uint64_t elements = 0;
  for (const auto& p : lender.all()) elements += static_cast<uint64_t>(numel(p->descriptor.global_shape));
  EXPECT_EQ(lender.stored_bytes(), 2 * elements);
  const Parameter& own = *parameters.find("embed.weight");
  const auto own_bytes = (4 + 2) * static_cast<uint64_t>(numel(own.descriptor.global_shape));  // fp32, and bf16 for ops
  EXPECT_EQ(parameters.stored_bytes(&lender), own_bytes);
  EXPECT_EQ(parameters.stored_bytes(), own_bytes + 2 * elements - own_bytes / 3);
  lender.initialize(7);
  for (const auto& p : parameters.all())
    EXPECT_EQ(p->shard.shares_storage_with(lender.find(p->name)->shard), p.get() != &own) << p->name;
}

TEST_F(Parameters, ArePlacedOnlyWhileNothingIsAllocated) {
  ParameterTable parameters(program_, layout_);
  std::optional<ParameterStorage> storage(std::in_place, parameters, Device{});
  EXPECT_HAS(test::refusal([&] { parameters.place(MeshShape({{"tp", 2}}), 1); }), "placed before they are allocated");
  EXPECT_HAS(test::refusal([&] { const ParameterStorage second(parameters, Device{}); }), "allocated once");
  storage.reset();
  parameters.place(MeshShape({{"tp", 2}}), 1);
  EXPECT_EQ(parameters.rank(), 1);
}

// The model outputs what its head reads, and an objective puts a head of two scores in place of its own.
Program scored_program() {
  Program program = test::SmallModel{}.program();
  BlockType& head = *program.last_block();
  head.outputs[kHiddenOutput] = head.inputs.at("hidden");
  head.outputs.erase(kLossOutput);
  add_objective(program, {ObjectiveOutput::kScores, 2});
  return program;
}

TEST(ScoredParameters, HaveTheHeadOfTheObjectiveInPlaceOfThatOfTheModel) {
  const Program program = scored_program();
  EXPECT_EQ(num_scores(program), 2);
  EXPECT_EQ(num_scores(test::SmallModel{}.program()), 0);
  const ParameterTable parameters(program, ProgramLayout{});
  EXPECT_EQ(parameters.left_out(), std::vector<std::string>{"lm_head.weight"});
  EXPECT_EQ(parameters.find("lm_head.weight"), nullptr);
  for (const auto& p : parameters.all()) EXPECT_EQ(p->of_objective, p->name == kScoreWeight) << p->name;
}

TEST(ScoredParameters, AreInitializedOneByOneWithTheValuesOfAll) {
  ParameterTable parameters(scored_program(), ProgramLayout{});
  const ParameterStorage storage(parameters, Device{});
  const auto head = [&] {
    const float* const begin = parameters.find(kScoreWeight)->shard.data_as<float>();
    return std::vector<float>(begin, begin + 8);
  };
  parameters.initialize(3);
  const std::vector<float> first = head();
  for (const auto& p : parameters.all()) p->shard.fill(7);
  parameters.initialize(3, [](const Parameter& p) { return p.of_objective; });
  EXPECT_EQ(head(), first);
  EXPECT_EQ(*parameters.find("embed.weight")->shard.data_as<float>(), 7);
}

}  // namespace
}  // namespace chassis
