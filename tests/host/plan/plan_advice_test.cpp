// Advice for runs that do not fit.
#include "host/plan/plan_advice.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "host/plan/plan_report.hpp"
#include "small_plan.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis {
namespace {

TEST(PlanAdvice, IsRehearsedAndRanked) {
  PlanRequest request = request_of(with_strategy("plugin = \"ddp\""), 4, {"recompute.mode=none"});
  request.memory_bytes = 38u << 20;
  const Plan plan = make_plan(request);
  ASSERT_FALSE(plan.fits());
  const AdviceList list = advise(request, plan);
  std::set<std::string> changes;
  int64_t before = INT64_MAX;
  for (const Advice& advice : list.single) {
    changes.insert(advice.change);
    EXPECT_LE(advice.saved_bytes, before);
    before = advice.saved_bytes;
    PlanRequest changed = request_of(with_strategy("plugin = \"ddp\""), advice.world_size, {"recompute.mode=none"});
    changed.overrides.insert(changed.overrides.end(), advice.overrides.begin(), advice.overrides.end());
    EXPECT_EQ(make_plan(changed).largest().peak_bytes(), advice.peak_bytes) << advice.change;
    EXPECT_EQ(static_cast<int64_t>(plan.largest().peak_bytes() - advice.peak_bytes), advice.saved_bytes)
        << advice.change;
  }
  EXPECT_TRUE(changes.contains("recompute.mode \"none\" → \"selective\""));
  EXPECT_TRUE(changes.contains("recompute.mode \"none\" → \"full\""));
  EXPECT_TRUE(changes.contains("train.micro_batch_size 4 → 2"));
  EXPECT_TRUE(changes.contains("strategy ddp → fsdp2"));
}

TEST(PlanAdvice, CombinesChangesIfNoneAloneSuffices) {
  PlanRequest request = request_of(with_strategy("plugin = \"ddp\""), 4, {"recompute.mode=none"});
  const AdviceList first = [&] {
    request.memory_bytes = 1;
    return advise(request, make_plan(request));
  }();
  ASSERT_FALSE(first.single.empty());
  request.memory_bytes = first.single.front().peak_bytes - 1;
  const AdviceList list = advise(request, make_plan(request));
  ASSERT_TRUE(list.together);
  EXPECT_TRUE(list.together->fits);
  EXPECT_HAS(list.together->change, " + ");
}

const std::vector<std::string> kSavedHere = {"export.plugin=safetensors", "export.when=never",
                                             "checkpoint.contents=full"};

TEST(PlanAdvice, KnowsAdapters) {
  std::vector<std::string> overrides = kSavedHere;
  PlanRequest request = request_of(kRun, 1, overrides);
  request.memory_bytes = 1;
  const AdviceList list = advise(request, make_plan(request));
  const auto lora = std::ranges::find(list.single, "adapter lora rank=16", &Advice::change);
  ASSERT_NE(lora, list.single.end());
  EXPECT_TRUE(lora->changes_training);
  overrides.emplace_back("adapter.plugin=lora");
  PlanRequest with_lora = request_of(kRun, 1, overrides);
  with_lora.memory_bytes = 1;
  EXPECT_EQ(make_plan(with_lora).largest().peak_bytes(), lora->peak_bytes) << "the number comes from a rehearsal";
}

TEST(PlanAdvice, AnAdapterIsTakenOnlyIfAllElseIsNotEnough) {
  PlanRequest request = request_of(with_strategy("plugin = \"ddp\""), 3, kSavedHere);  // heads are not divided by 3
  request.memory_bytes = 1;
  const AdviceList list = advise(request, make_plan(request));
  ASSERT_TRUE(list.together);
  EXPECT_TRUE(list.together->change.ends_with("adapter lora rank=16 + quant bnb4")) << list.together->change;
  request.memory_bytes = list.together->peak_bytes;
  const AdviceList fits = advise(request, make_plan(request));
  ASSERT_TRUE(fits.together);
  EXPECT_TRUE(fits.together->fits);
}

TEST(PlanAdvice, OffersNoSecondAdapter) {
  std::vector<std::string> overrides = kSavedHere;
  overrides.emplace_back("adapter.plugin=lora");
  PlanRequest request = request_of(kRun, 1, overrides);
  request.memory_bytes = 1;
  const Plan plan = make_plan(request);
  EXPECT_TRUE(plan.adapters.empty());
  EXPECT_EQ(plan.quants, std::vector<std::string>{"bnb4"});
  const int64_t added = 4 * 16 * ((64 + 64) * 2 + (64 + 32) * 2 + (64 + 192) * 3);
  EXPECT_EQ(plan.num_parameters, kParameters + added);
  EXPECT_EQ(plan.num_trained, added);
  EXPECT_HAS(plan_text(plan, nullptr), " %) trained");
  for (const Advice& advice : advise(request, plan).single)
    EXPECT_EQ(advice.changes_training, advice.change == "quant bnb4") << advice.change;
}

TEST(PlanAdvice, KnowsQuantizationsAndTheirOptions) {
  std::vector<std::string> overrides = kSavedHere;
  overrides.emplace_back("adapter.plugin=lora");
  PlanRequest request = request_of(kRun, 1, overrides);
  request.memory_bytes = 1;
  const AdviceList without = advise(request, make_plan(request));
  const auto quant = std::ranges::find(without.single, "quant bnb4", &Advice::change);
  ASSERT_NE(quant, without.single.end());
  overrides.emplace_back("quant.plugin=bnb4");
  PlanRequest with_quant = request_of(kRun, 1, overrides);
  with_quant.memory_bytes = 1;
  const Plan plan = make_plan(with_quant);
  EXPECT_EQ(plan.largest().peak_bytes(), quant->peak_bytes) << "the number comes from a rehearsal";
  const std::pair<std::string, std::string> nested("quant.double_quant", "true");
  EXPECT_NE(std::ranges::find(plan.savings, nested), plan.savings.end());
}

TEST(PlanAdvice, TakesFewerBitsOnlyIfAnAdapterIsNotEnough) {
  PlanRequest request = request_of(kRun, 1, kSavedHere);
  request.memory_bytes = 1;
  const AdviceList list = advise(request, make_plan(request));
  const auto lora = std::ranges::find(list.single, "adapter lora rank=16", &Advice::change);
  const auto both = std::ranges::find(list.single, "adapter lora rank=16 + quant bnb4", &Advice::change);
  ASSERT_NE(lora, list.single.end());
  ASSERT_NE(both, list.single.end());
  EXPECT_LT(both->peak_bytes, lora->peak_bytes);
}

// Plans what an advice proposes.
Plan plan_with(const std::string& toml, const Advice& advice, const std::vector<std::string>& overrides) {
  PlanRequest request = request_of(toml, advice.world_size, overrides);
  request.overrides.insert(request.overrides.end(), advice.overrides.begin(), advice.overrides.end());
  return make_plan(request);
}

AdviceList advice_for(const std::string& toml, int world_size, const std::vector<std::string>& overrides) {
  PlanRequest request = request_of(toml, world_size, overrides);
  request.memory_bytes = 1;
  return advise(request, make_plan(request));
}

const Advice* advice_on(const AdviceList& list, const std::string& axis) {
  for (const Advice& advice : list.single)
    if (advice.change.starts_with("mesh." + axis + " ")) return &advice;
  return nullptr;
}

TEST(PlanAdvice, ProposesToDivideTheComputation) {
  const std::string toml = with_strategy("plugin = \"fsdp2\"");
  const std::vector<std::string> overrides = {"recompute.mode=none", "train.seq_len=512"};
  const Plan plan = make_plan(request_of(toml, 4, overrides));
  const AdviceList list = advice_for(toml, 4, overrides);
  for (const char* axis : {"tp", "cp", "pp"}) {
    SCOPED_TRACE(axis);
    const Advice* const advice = advice_on(list, axis);
    ASSERT_NE(advice, nullptr);
    EXPECT_EQ(advice->world_size, 4);
    EXPECT_FALSE(advice->changes_training);
    const Plan changed = plan_with(toml, *advice, overrides);
    EXPECT_EQ(changed.largest().peak_bytes(), advice->peak_bytes);
    EXPECT_EQ(static_cast<int64_t>(plan.largest().peak_bytes() - advice->peak_bytes), advice->saved_bytes);
    EXPECT_EQ(changed.batch.global_batch_size, plan.batch.global_batch_size);
    EXPECT_HAS(changed.mesh, axis);
    uint64_t after = 0, planned = 0;
    bool has_axis = false;
    for (const TrafficChange& t : advice->traffic)
      after += t.after, has_axis |= t.group.find(axis) != std::string::npos;
    for (const Traffic& t : largest_traffic(changed.ranks)) planned += t.bytes;
    EXPECT_EQ(after, planned);
    EXPECT_TRUE(has_axis);
  }
}

TEST(PlanAdvice, ProposesALongerAxis) {
  const std::string toml = with_strategy(
      "plugin = \"tensor\"\n[[parallel]]\nplugin = \"pipeline\"\n"
      "[[parallel]]\nplugin = \"fsdp2\"");
  const std::vector<std::string> overrides = {"recompute.mode=none", "mesh.tp=1", "mesh.pp=2"};
  const AdviceList list = advice_for(toml, 4, overrides);
  const Advice* const pipeline = advice_on(list, "pp");
  ASSERT_NE(pipeline, nullptr);
  EXPECT_EQ(pipeline->change, "mesh.pp 2 → 4, mesh.dp_shard 2 → 1");
  EXPECT_EQ(plan_with(toml, *pipeline, overrides).largest().peak_bytes(), pipeline->peak_bytes);
  const Advice* const tensor = advice_on(list, "tp");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->change, "mesh.tp 1 → 2, mesh.dp_shard 2 → 1") << "its strategy is there";
}

TEST(PlanAdvice, TakesTheSmallestSizeThatFits) {
  const std::string toml = with_strategy("plugin = \"ddp\"");
  const std::vector<std::string> overrides = {"recompute.mode=none", "train.micro_batch_size=1",
                                              "model.config.num_key_value_heads=4"};
  const Plan two =
      make_plan(request_of(toml, 4,
                           {"recompute.mode=none", "train.micro_batch_size=1", "model.config.num_key_value_heads=4",
                            "mesh.tp=2", "mesh.dp_replicate=2", "parallel.1.plugin=tensor"}));
  PlanRequest request = request_of(toml, 4, overrides);
  request.memory_bytes = two.largest().peak_bytes();
  const AdviceList enough = advise(request, make_plan(request));
  ASSERT_NE(advice_on(enough, "tp"), nullptr);
  EXPECT_EQ(advice_on(enough, "tp")->change, "mesh.tp 1 → 2 (tensor), mesh.dp_replicate 4 → 2");
  EXPECT_TRUE(advice_on(enough, "tp")->fits);
  request.memory_bytes -= 1;
  const AdviceList more = advise(request, make_plan(request));
  ASSERT_NE(advice_on(more, "tp"), nullptr);
  EXPECT_EQ(advice_on(more, "tp")->change, "mesh.tp 1 → 4 (tensor), mesh.dp_replicate 4 → 1");
}

TEST(PlanAdvice, DoesNotProposeWhatIsRefused) {
  const std::string toml = with_strategy("plugin = \"fsdp2\"");
  const std::vector<std::string> overrides = {"recompute.mode=none", "model.config.num_attention_heads=3",
                                              "model.config.num_key_value_heads=3", "model.config.hidden_size=96"};
  const AdviceList list = advice_for(toml, 4, overrides);
  EXPECT_EQ(advice_on(list, "tp"), nullptr) << "3 heads";
  const AdviceList odd = advice_for(toml, 3, {"train.global_batch_size=48"});
  for (const char* axis : {"tp", "cp", "pp"}) EXPECT_EQ(advice_on(odd, axis), nullptr) << "3 ranks";
  const AdviceList alone = advice_for(kRun, 1, {});
  for (const char* axis : {"tp", "cp", "pp"}) EXPECT_EQ(advice_on(alone, axis), nullptr) << "1 rank";
}

TEST(PlanAdvice, CombinesAxes) {
  const std::string toml = with_strategy("plugin = \"ddp\"");
  const std::vector<std::string> overrides = {"recompute.mode=full", "train.micro_batch_size=1"};
  const AdviceList list = advice_for(toml, 8, overrides);
  ASSERT_TRUE(list.together);
  EXPECT_EQ(plan_with(toml, *list.together, overrides).largest().peak_bytes(), list.together->peak_bytes)
      << list.together->change;
}

TEST(PlanAdvice, IsGivenIfMemoryIsTight) {
  const std::string toml = with_strategy("plugin = \"fsdp2\"");
  PlanRequest request = request_of(toml, 4, {"recompute.mode=none"});
  const uint64_t needed = make_plan(request).largest().peak_bytes();
  request.memory_bytes = needed + needed / 20;
  const Plan tight = make_plan(request);
  EXPECT_TRUE(tight.fits());
  EXPECT_TRUE(tight.is_tight());
  const AdviceList list = advise(request, tight);
  EXPECT_FALSE(list.together);
  EXPECT_NE(advice_on(list, "tp"), nullptr);
  request.memory_bytes = 2 * needed;
  EXPECT_FALSE(make_plan(request).is_tight());
}

TEST(PlanAdvice, SaysWhatIsSentMore) {
  Advice advice;
  EXPECT_EQ(traffic_change_text(advice), "");
  advice.traffic = {{"dp_shard", 100 << 20, 50 << 20}, {"pp", 7, 7}, {"tp", 0, 60 << 20}};
  EXPECT_EQ(traffic_change_text(advice), "; traffic +10 %: dp_shard −50 MiB, tp +60 MiB");
  advice.traffic = {{"tp", 0, 60 << 20}};
  EXPECT_EQ(traffic_change_text(advice), "; traffic: tp +60 MiB");
}

TEST(PlanAdvice, SaysWhyAChangeIsRefused) {
  PlanRequest request = request_of(with_strategy("plugin = \"fsdp2\""), 4);
  request.memory_bytes = 1;
  const AdviceList list = advise(request, make_plan(request));
  for (const auto& [change, reason] : list.refused) EXPECT_FALSE(reason.empty()) << change;
  EXPECT_FALSE(list.single.empty());
}

}  // namespace
}  // namespace chassis
