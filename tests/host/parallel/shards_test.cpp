// Wrong calls of a strategy are refused. tests/regress/communication_test.cpp tests what shards send, and
// tests/regress/parallel_test.cpp the results of training with them.
#include "host/parallel/shards.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis {
namespace {

class ShardsTest : public testing::Test {
 protected:
  ShardsTest() : program_(test::SmallModel{}.program()), parameters_(program_, layout_) {
    parameters_.place(MeshShape({{"dp_shard", 1}}), 0);
    storage_.emplace(parameters_, Device{});
    parameters_.initialize(7);
    std::vector<ShardRule> rules(parameters_.all().size());
    for (ShardRule& rule : rules) rule.kind = CHASSIS_SHARD_DIM, rule.axes = {"dp_shard"};
    std::vector<Parameter*> all;
    for (const auto& p : parameters_.all()) all.push_back(p.get());
    shards_ = std::make_unique<Shards>(parameters_, all, std::move(rules), communicator_, Device{});
    shards_->allocate();
  }

  Program program_;
  ProgramLayout layout_;
  ParameterTable parameters_;
  std::optional<ParameterStorage> storage_;
  World world_;
  Communicator communicator_{nullptr, world_, MeshShape({{"dp_shard", 1}}), 0, Device{}};
  std::unique_ptr<Shards> shards_;
  const std::vector<uint32_t> first_ = {0};
};

TEST_F(ShardsTest, AreWholeBetweenGatherAndTheLastRelease) {
  EXPECT_FALSE(shards_->is_whole(0));
  shards_->gather(first_, "embed");
  shards_->gather(first_, "head");
  shards_->wait_gathered(first_);
  shards_->release(first_);
  EXPECT_TRUE(shards_->is_whole(0));
  shards_->release(first_);
  EXPECT_FALSE(shards_->is_whole(0));
  EXPECT_FALSE(parameters_.all()[0]->value);
  shards_->wait_all();
}

TEST_F(ShardsTest, NameAParameterThatIsStillGatheredAtTheEnd) {
  shards_->gather(first_, "embed");
  shards_->gather(first_, "embed");
  EXPECT_HAS(test::refusal([&] { shards_->wait_all(); }),
             "parameter 'embed.weight' is still gathered: its strategy must release it 2 more times");
}

TEST_F(ShardsTest, RefuseMoreReleasesThanGathers) {
  EXPECT_HAS(test::refusal([&] { shards_->release(first_); }),
             "releases parameter 'embed.weight' more often than it gathers it");
  EXPECT_HAS(test::refusal([&] { shards_->shrink(first_, 1); }),
             "releases parameter 'embed.weight' more often than it gathers it");
}

TEST_F(ShardsTest, RefuseToWaitForAParameterThatIsNotGathered) {
  EXPECT_HAS(test::refusal([&] { shards_->wait_gathered(first_); }),
             "waits for parameter 'embed.weight', which it did not gather");
}

TEST_F(ShardsTest, RefuseAnUnknownParameter) {
  const std::vector<uint32_t> unknown = {77};
  EXPECT_HAS(test::refusal([&] { shards_->gather(unknown, "embed"); }), "a strategy named parameter 77 of ");
}

}  // namespace
}  // namespace chassis
