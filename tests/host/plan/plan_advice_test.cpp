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

TEST(PlanAdvice, SaysWhyAChangeIsRefused) {
  PlanRequest request = request_of(with_strategy("plugin = \"fsdp2\""), 4);
  request.memory_bytes = 1;
  const AdviceList list = advise(request, make_plan(request));
  for (const auto& [change, reason] : list.refused) EXPECT_FALSE(reason.empty()) << change;
  EXPECT_FALSE(list.single.empty());
}

}  // namespace
}  // namespace chassis
