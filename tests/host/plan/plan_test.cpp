// Plans of a small model: memory and traffic by strategy, recompute, reports.
#include "host/plan/plan.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <regex>
#include <set>

#include "host/base/json.hpp"
#include "host/plan/plan_advice.hpp"
#include "host/plan/plan_report.hpp"
#include "host/service/memory.hpp"
#include "host/service/meta_memory.hpp"
#include "small_plan.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::text_of_file;

std::string traffic_text(const RankPlan& rank) {
  std::string text;
  for (const CommCount& count : rank.traffic)
    text += count.group + " " + count.op + " " + std::to_string(count.calls) + " " + std::to_string(count.bytes) + "\n";
  return text;
}

TEST(Plan, OneRankStoresEverything) {
  const Plan plan = plan_of("", 1);
  ASSERT_EQ(plan.ranks.size(), 1u);
  EXPECT_EQ(plan.num_parameters, kParameters);
  EXPECT_EQ(peak(plan.ranks[0], PlanCategory::kParameters), 4u * kParameters);
  EXPECT_EQ(peak(plan.ranks[0], PlanCategory::kGradients), 4u * kParameters);
  EXPECT_EQ(peak(plan.ranks[0], PlanCategory::kOptimizer), 8u * kParameters);
  EXPECT_EQ(peak(plan.ranks[0], PlanCategory::kGathered), 0u);
  EXPECT_TRUE(plan.ranks[0].traffic.empty());
  EXPECT_GE(plan.ranks[0].load_peak_bytes, 12u * kParameters + (32u << 20)) << "two buckets";
  EXPECT_GT(plan.ranks[0].export_peak_bytes, plan.ranks[0].load_peak_bytes) << "gradients stay, and a header";
}

TEST(Plan, ShardsTakeTheirPartAndUnitsAreGathered) {
  const Plan plan = plan_of("fsdp2", 4);
  ASSERT_EQ(plan.ranks.size(), 1u) << "everything divides by 4";
  EXPECT_EQ(plan.ranks[0].ranks, (std::vector<int>{0, 1, 2, 3}));
  const RankPlan& rank = plan.ranks[0];
  EXPECT_EQ(peak(rank, PlanCategory::kParameters), static_cast<uint64_t>(kParameters));
  EXPECT_EQ(peak(rank, PlanCategory::kOptimizer), 2u * kParameters);
  EXPECT_EQ(peak(rank, PlanCategory::kGathered), 4u * (1024 * 64 + 64)) << "the head";
  // 6 units, 3 micro-batches; the last unit stays whole between forward and backward.
  const auto sent = traffic(plan);
  EXPECT_EQ(sent.at("dp_shard all_gather").calls, 3u * 11);
  EXPECT_EQ(sent.at("dp_shard reduce_scatter").calls, 3u * 6);
  EXPECT_EQ(sent.at("dp_shard reduce_scatter").bytes, 3u * kParameters * 4 * 3 / 4);
}

TEST(Plan, DividesActivationsByPositions) {
  const std::vector<std::string> long_rows = {"train.seq_len=4096", "train.micro_batch_size=1"};
  const uint64_t whole = peak(plan_of("", 1, long_rows).ranks[0], PlanCategory::kActivations);
  // Keys and values that are gathered stay until backward.
  for (const auto& [mode, most] : {std::pair("all_to_all", 0.35), {"gather", 0.5}, {"ring", 0.35}}) {
    const std::string strategy = std::string("plugin = \"context\"\nmode = \"") + mode + "\"";
    const Plan plan = make_plan(request_of(with_strategy(strategy), 4, long_rows));
    for (const RankPlan& rank : plan.ranks)
      EXPECT_LE(peak(rank, PlanCategory::kActivations), most * static_cast<double>(whole)) << mode;
    EXPECT_EQ(peak(plan.ranks[0], PlanCategory::kParameters), 4u * kParameters) << "all of them on every rank";
  }
}

TEST(Plan, DividesParametersOverRanksThatDividePositions) {
  const std::string both = "plugin = \"context\"\n[[parallel]]\nplugin = \"fsdp2\"";
  const Plan plan = make_plan(request_of(with_strategy(both), 4, {"mesh.cp=2"})), alone = plan_of("fsdp2", 4);
  ASSERT_EQ(plan.ranks.size(), 1u);
  for (const PlanCategory category : {PlanCategory::kParameters, PlanCategory::kOptimizer})
    EXPECT_EQ(peak(plan.ranks[0], category), peak(alone.ranks[0], category));
}

TEST(Plan, CountsTheComponentsOfWeightsInFourBits) {
  const int64_t linears = 4 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 192), rank = 4;
  const int64_t added = 4 * rank * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 192));
  const int64_t others = kParameters - linears;              // embeddings, head, norms
  const int64_t divided = linears / 2 + 4 * (linears / 64);  // codes, and a scale for each block of 64
  const int64_t tables = 4 * 7 * 16 * 4;                     // for each weight, on every rank
  const std::vector<std::string> overrides = {"adapter.plugin=lora", "adapter.rank=4", "quant.plugin=bnb4",
                                              "checkpoint.contents=full"};
  const auto parameters = [](const Plan& plan) {
    return static_cast<int64_t>(peak(plan.ranks[0], PlanCategory::kParameters));
  };
  EXPECT_EQ(parameters(plan_of("", 1, overrides)), divided + tables + 4 * (others + added));
  const Plan four = plan_of("fsdp2", 4, overrides);
  EXPECT_EQ(parameters(four), divided / 4 + tables + others + added);
  EXPECT_EQ(peak(four.ranks[0], PlanCategory::kOptimizer), 2u * added) << "of the adapter alone";
}

TEST(Plan, CountsStatesInEightBits) {
  const int64_t small = 4 * (2 * 64 * 32 + 2 * 64) + 64;  // parameters below 4096 elements
  const int64_t large = kParameters - small;
  const auto states = [](const Plan& plan) {
    return static_cast<int64_t>(peak(plan.ranks[0], PlanCategory::kOptimizer));
  };
  const int64_t bytes = 2 * large + 2 * 4 * (large / 256) + 8 * small;
  EXPECT_EQ(states(plan_of("", 1, {"optimizer.plugin=adamw8bit"})), bytes);
  EXPECT_EQ(states(plan_of("fsdp2", 4, {"optimizer.plugin=adamw8bit"})), bytes / 4);
}

TEST(Plan, RehearsesEveryDifferentRankOnce) {
  const Plan plan = plan_of("fsdp2", 3);
  ASSERT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.ranks[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.ranks[1].ranks, std::vector<int>{2});
  EXPECT_GT(peak(plan.ranks[0], PlanCategory::kParameters), peak(plan.ranks[1], PlanCategory::kParameters));
  EXPECT_EQ(2 * peak(plan.ranks[0], PlanCategory::kParameters) + peak(plan.ranks[1], PlanCategory::kParameters),
            4u * kParameters);
  EXPECT_EQ(&plan.largest(), &plan.ranks[0]);
}

TEST(Plan, HigherStagesOfZeroTakeLessMemory) {
  const auto stage = [](int n) {
    return make_plan(request_of(with_strategy("plugin = \"zero\"\nstage = " + std::to_string(n)), 4));
  };
  const Plan one = stage(1), two = stage(2), three = stage(3);
  EXPECT_EQ(peak(one.ranks[0], PlanCategory::kOptimizer), 2u * kParameters);
  EXPECT_GT(peak(one.ranks[0], PlanCategory::kParameters), 3u * kParameters);
  EXPECT_GE(one.largest().step.peak_bytes, two.largest().step.peak_bytes);
  EXPECT_GE(two.largest().step.peak_bytes, three.largest().step.peak_bytes);
}

TEST(Plan, MoreMicrobatchesAddTrafficAndOnlyTheirRowsOfMemory) {
  const Plan few = plan_of("fsdp2", 4), many = plan_of("fsdp2", 4, {"train.global_batch_size=480"});
  EXPECT_EQ(few.batch.num_microbatches, 3);
  EXPECT_EQ(many.batch.num_microbatches, 30);
  const uint64_t values = 4 * 128 * 4;  // per micro-batch: rows, positions, fields
  EXPECT_EQ(many.ranks[0].step.peak_bytes - few.ranks[0].step.peak_bytes, 27 * values * sizeof(int32_t) * 2)
      << "the step and the next one, which data.prefetch reads";
  EXPECT_EQ(traffic(many).at("dp_shard all_gather").bytes, 10 * traffic(few).at("dp_shard all_gather").bytes);
}

TEST(Plan, RecomputeTakesFewerActivations) {
  const auto activations = [](const Plan& plan) { return peak(plan.ranks[0], PlanCategory::kActivations); };
  const Plan none = plan_of("", 1, {"recompute.mode=none"}), selective = plan_of("", 1, {"recompute.mode=selective"}),
             some = plan_of("", 1, {"recompute.mode=selective", "recompute.blocks=2"}),
             full = plan_of("", 1, {"recompute.mode=full"});
  EXPECT_LT(activations(full), activations(none) / 2);
  EXPECT_LT(activations(full), activations(selective));
  EXPECT_LT(activations(selective), activations(some));
  EXPECT_LT(activations(some), activations(none));
  // For each of the 3 blocks whose backward has not begun: the inputs of the matrix products after the two norms, of
  // hidden_size, and the input of the last one, of intermediate_size.
  EXPECT_GE(activations(none) - activations(selective), 3u * (2 * 64 + 192) * 128 * 4 * 4);
  for (const Plan* plan : {&none, &selective, &full}) {
    ASSERT_EQ(plan->modes.size(), 3u);
    EXPECT_EQ(plan->modes[0].second.peak_bytes, none.ranks[0].step.peak_bytes);
    EXPECT_EQ(plan->modes[1].second.peak_bytes, selective.ranks[0].step.peak_bytes);
    EXPECT_EQ(plan->modes[2].second.peak_bytes, full.ranks[0].step.peak_bytes);
  }
}

TEST(Plan, AutoTakesTheCheapestThatFits) {
  const auto peak_with = [](const std::vector<std::string>& overrides) {
    return plan_of("", 1, overrides).largest().peak_bytes();
  };
  const uint64_t none = peak_with({"recompute.mode=none"}), selective = peak_with({"recompute.mode=selective"}),
                 first = peak_with({"recompute.mode=selective", "recompute.blocks=1"});
  PlanRequest request = request_of(kRun, 1);
  const auto chosen = [&](uint64_t memory_bytes) {
    request.memory_bytes = memory_bytes;
    const Plan plan = make_plan(request);
    EXPECT_EQ(plan.fits(), memory_bytes > 1) << memory_bytes;
    return plan.recompute;
  };
  EXPECT_EQ(make_plan(request).recompute, Recompute::kNone) << "without a limit";
  EXPECT_EQ(chosen(none), Recompute::kNone);
  EXPECT_EQ(chosen(none - 1), Recompute{.selective = 1});
  EXPECT_EQ(text(chosen(first - 1)), "selective in the first 2 blocks");
  EXPECT_EQ(chosen(selective), Recompute::kSelective);
  EXPECT_EQ(text(chosen(selective - 1)), "full in the first block, selective in the others");
  EXPECT_EQ(chosen(1), Recompute::kFull);
}

TEST(Plan, TheCheapestThatFitsIsFoundInFewTries) {
  for (int64_t num_blocks : {1, 2, 7, 80})
    for (int64_t cost = 0; cost <= 2 * num_blocks + 1; ++cost) {
      int64_t tries = 0;
      const auto fits = [&](const Recompute& recompute) {
        ++tries;
        int64_t its_cost = 0;
        while (recompute_of_cost(its_cost, num_blocks) != recompute) ++its_cost;
        return its_cost >= cost;
      };
      EXPECT_EQ(cheapest_that_fits(num_blocks, fits), recompute_of_cost(std::min(cost, 2 * num_blocks), num_blocks));
      EXPECT_LE(tries, cost > 2 * num_blocks ? 2 : 10);
    }
  EXPECT_EQ(cheapest_that_fits(0, [](const Recompute&) { return false; }), Recompute::kNone) << "nothing repeats";
}

TEST(Plan, RefusesToRecomputeMoreBlocksThanThereAre) {
  EXPECT_HAS(refusal_of("", 1, {"recompute.mode=full", "recompute.blocks=5"}),
             "recompute.blocks = 5, but the model repeats at most 4 blocks");
  EXPECT_HAS(refusal_of("", 1, {"recompute.mode=selective", "recompute.blocks=5"}),
             "recompute.blocks = 5, but the model repeats at most 4 blocks");
}

TEST(Plan, OffloadedShardsLieInTheMemoryOfTheHost) {
  const std::vector<std::string> cuda = {"run.device=\"cuda\"", "precision.compute=fp32"};
  const Plan plan = plan_of("fsdp2", 4, cuda);
  std::vector<std::string> overrides = cuda;
  overrides.push_back("parallel.0.offload=\"cpu\"");
  const Plan offloaded = plan_of("fsdp2", 4, overrides);
  EXPECT_EQ(peak(offloaded.ranks[0], PlanCategory::kOptimizer), 0u);
  EXPECT_EQ(peak(offloaded.ranks[0], PlanCategory::kParameters), 0u);
  EXPECT_GE(offloaded.ranks[0].host_peak_bytes, plan.ranks[0].host_peak_bytes + 3u * kParameters);
}

TEST(Plan, AModelWithoutWeightsIsPlannedByItsConfig) {
  test::ScratchDirectory scratch;
  test::write_text(scratch / "config.json",
                   R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2})");
  std::string toml(kRun);
  const size_t begin = toml.find("plugin = \"llama\""), end = toml.find("[[data.train]]");
  toml.replace(begin, end - begin, "path = \"" + scratch.path() + "\"\n");
  EXPECT_GT(make_plan(request_of(toml, 1)).num_parameters, 0);
}

TEST(Plan, LeavesNoMemoryBehind) {
  plan_of("zero", 3);
  EXPECT_EQ(meta_memory_usage(kMetaHost).live_bytes, 0u);
  EXPECT_EQ(meta_memory_usage(kMetaDevice).live_bytes, 0u);
}

TEST(Plan, RefusesWhatTheRunWouldRefuse) {
  EXPECT_HAS(refusal_of("fsdp2", 4, {"mesh.dp_shard=3"}), "mesh.dp_shard = 3");
  EXPECT_HAS(refusal_of("fsdp2", 4, {"mesh.dp_shard=3"}), "4");
  EXPECT_HAS(refusal_of("fsdp2", 8, {"mesh.tp=8", "mesh.dp_shard=1"}),
             "mesh.tp = 8, but no strategy of [[parallel]] serves this axis");
  EXPECT_HAS(refusal_of("", 2), "[[parallel]] names no strategy");
  EXPECT_HAS(refusal_of("fsdp2", 5), "train.global_batch_size = 48 is not a multiple of");
  EXPECT_HAS(refusal_of("fsdp2", 8, {"mesh.dp_replicate=-1", "mesh.dp_shard=-1"}), "both -1");
  EXPECT_HAS(refusal_of("fsdp2", 4, {"parallel.0.reshard_to=3"}), "does not divide the 4 ranks");
}

TEST(Plan, TheMeshGivesTheNumberOfRanks) {
  EXPECT_EQ(plan_of("fsdp2", 0, {"mesh.dp_replicate=2", "mesh.dp_shard=3"}).world_size, 6);
  EXPECT_EQ(plan_of("", 0).world_size, 1);
}

TEST(Plan, TheTimelineAddsUpToThePeak) {
  const Plan plan = plan_of("fsdp2", 2);
  const RankPlan& rank = plan.ranks[0];
  uint64_t most = 0;
  for (const PlanSample& sample : rank.timeline.all())
    most = std::max(most, std::accumulate(sample.bytes.begin(), sample.bytes.end(), uint64_t{0}));
  EXPECT_EQ(most, rank.step.peak_bytes);
  EXPECT_EQ(rank.timeline.samples.front().event, "forward embed");
  EXPECT_EQ(rank.timeline.samples.back().event, "after the step");
}
// ---- reports

TEST(PlanReport, JsonHasASchema) {
  PlanRequest request = request_of(with_strategy("plugin = \"fsdp2\""), 3);
  request.memory_bytes = 1;
  const Plan plan = make_plan(request);
  const AdviceList advice = advise(request, plan);
  const Json json = Json::parse(plan_json(plan, &advice).dump());
  const std::string where = "plan";
  EXPECT_EQ(json_string(json, "schema", where), "chassis.plan/1");
  EXPECT_EQ(json_int(json, "world_size", where), 3);
  EXPECT_EQ(json_int(json, "parameters", where), kParameters);
  EXPECT_FALSE(json_bool(json, "fits", where));
  EXPECT_EQ(json_at(json, "mesh", where)["dp_shard"], 3);
  std::set<int> all;
  for (const Json& rank : json_at(json, "ranks", where)) {
    for (const Json& r : rank.at("ranks")) all.insert(r.get<int>());
    int64_t sum = 0;
    for (const auto& [name, part] : rank.at("step").at("categories").items()) {
      EXPECT_GE(part.at("peak").get<int64_t>(), part.at("at_peak").get<int64_t>()) << name;
      sum += part.at("at_peak").get<int64_t>();
    }
    EXPECT_EQ(sum, rank.at("step").at("peak").get<int64_t>());
    for (const char* key : {"load_peak", "export_peak", "host_peak", "peak"})
      EXPECT_TRUE(rank.at(key).is_number_unsigned()) << key;
    for (const Json& count : rank.at("traffic"))
      for (const char* key : {"group", "op", "calls", "bytes"}) EXPECT_TRUE(count.contains(key)) << key;
  }
  EXPECT_EQ(all, (std::set<int>{0, 1, 2}));
  for (const Json& one : json.at("advice").at("single"))
    for (const char* key : {"change", "overrides", "world_size", "peak", "saved", "fits"})
      EXPECT_TRUE(one.contains(key)) << key;
}

TEST(PlanReport, JsonSaysWhatIsRecomputed) {
  const auto json_of = [](std::vector<std::string> overrides, uint64_t memory_bytes) {
    PlanRequest request = request_of(kRun, 1, std::move(overrides));
    request.memory_bytes = memory_bytes;
    return Json::parse(plan_json(make_plan(request), nullptr).dump());
  };
  const Json some = json_of({"recompute.mode=selective", "recompute.blocks=2"}, 0);
  EXPECT_EQ(some["recompute"], "selective");
  EXPECT_EQ(some["recompute_blocks"], 2);
  EXPECT_TRUE(some["recompute_others"].is_null());
  const Json& modes = some["recompute_modes"];
  const auto peak_of = [&](const char* mode) { return modes[mode]["peak"].get<uint64_t>(); };
  EXPECT_LT(peak_of("full"), peak_of("selective"));
  EXPECT_LT(peak_of("selective"), peak_of("none"));
  const Json all = json_of({"recompute.mode=selective"}, 0);
  EXPECT_TRUE(all["recompute_blocks"].is_null());
  EXPECT_EQ(all["ranks"][0]["step"]["peak"], peak_of("selective"));
  const Json mixed = json_of({}, all["ranks"][0]["peak"].get<uint64_t>() - 1);
  EXPECT_EQ(mixed["recompute"], "full");
  EXPECT_EQ(mixed["recompute_blocks"], 1);
  EXPECT_EQ(mixed["recompute_others"], "selective");
}

TEST(PlanReport, HtmlIsOneFileThatFetchesNothing) {
  PlanRequest request = request_of(with_strategy("plugin = \"fsdp2\""), 3, {"run.name=\"a <b> & c\""});
  request.memory_bytes = 1 << 20;
  const Plan plan = make_plan(request);
  const AdviceList advice = advise(request, plan);
  const std::string html = plan_html(plan, &advice);
  for (const char* part :
       {"<!doctype html>", "<style>", "<svg", "rank 2", "activations", "limit 1 MiB", "a &lt;b&gt; &amp; c", "</html>"})
    EXPECT_HAS(html, part);
  for (const char* outside : {"http:", "https:", "src=", "href=", "<script", "<link", "@import", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  for (const char* bad : {"nan", "inf\"", "width=\"-", "height=\"-"})
    EXPECT_EQ(html.find(bad), std::string::npos) << bad;
}

TEST(PlanReport, HtmlHasOneBarForEachKindOfRank) {
  const auto labels_of = [](const std::string& strategies, int world_size, const char* mesh) {
    const Plan plan = make_plan(request_of(std::string(kRun) + strategies, world_size, {mesh}));
    const std::string html = plan_html(plan, nullptr);
    std::vector<std::string> labels;
    const std::regex label("text-anchor=\"end\">([0-9]* ?ranks?:? [^<]*)</text>");
    for (std::sregex_iterator at(html.begin(), html.end(), label), end; at != end; ++at) labels.push_back((*at)[1]);
    return labels;
  };
  using Labels = std::vector<std::string>;
  const char* const fsdp = "[[parallel]]\nplugin = \"fsdp2\"\n";
  EXPECT_EQ(labels_of(fsdp, 1, "mesh.dp_shard=1"), (Labels{"rank 0"}));
  EXPECT_EQ(labels_of(fsdp, 4, "mesh.dp_shard=4"), (Labels{"4 ranks: 0-3"}));
  EXPECT_EQ(labels_of(fsdp, 3, "mesh.dp_shard=3"), (Labels{"2 ranks: 0-1", "rank 2"}));
  const std::string pipeline = "[[parallel]]\nplugin = \"pipeline\"\n" + std::string(fsdp);
  EXPECT_EQ(labels_of(pipeline, 8, "mesh.pp=2"), (Labels{"4 ranks: 0-3", "4 ranks: 4-7"}));
}

TEST(PlanReport, TextMatchesTheGoldenFile) {
  PlanRequest request =
      request_of(with_strategy("plugin = \"fsdp2\""), 3,
                 {"train.global_batch_size=24", "attention.plugin=\"naive\"", "kernels.plugins=[\"reference\"]"});
  const std::string text = plan_text(make_plan(request), nullptr);
  const std::string golden = CHASSIS_TEST_SOURCE_DIR "/tests/golden/plan/small.txt";
  if (std::getenv("CHASSIS_UPDATE_GOLDEN") != nullptr) test::write_text(golden, text);
  EXPECT_EQ(text, text_of_file(golden));
}

TEST(PlanReport, RanksReadAsRanges) {
  EXPECT_EQ(ranks_text({0}), "0");
  EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

// A plan rehearses its ranks one after another in one session.
TEST(Plan, IsForEachRankThatOfASessionOfItsOwn) {
  const std::vector<std::string> small = {"mesh.pp=4", "train.micro_batch_size=1", "train.global_batch_size=24"};
  std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"plugin = \"pipeline\"\nschedule = \"zb_h1\"", {"model.config.tie_word_embeddings=true"}},
      {"plugin = \"pipeline\"\n[[parallel]]\nplugin = \"fsdp2\"", {"mesh.dp_shard=3"}},
      {"plugin = \"pipeline\"\n[[parallel]]\nplugin = \"tensor\"\n[[parallel]]\nplugin = \"zero\"",
       {"mesh.tp=2", "mesh.dp_shard=2", "adapter.plugin=lora"}},
      {"plugin = \"pipeline\"\n[[parallel]]\nplugin = \"fsdp2\"\noffload = \"cpu\"",
       {"mesh.dp_shard=2", "run.device=\"cuda\""}}};
#ifdef CHASSIS_TEST_CUDA_KERNELS  // bnb4 computes on GPUs only where it was built with a toolkit
  cases.push_back(cases.back());
  cases.back().second.insert(cases.back().second.end(), {"adapter.plugin=lora", "quant.plugin=bnb4"});
#endif
  for (const auto& [tables, more] : cases) {
    SCOPED_TRACE(tables);
    std::vector<std::string> overrides = small;
    overrides.insert(overrides.end(), more.begin(), more.end());
    const PlanRequest request = request_of(with_strategy(tables), 0, overrides);
    const Plan plan = make_plan(request);
    ASSERT_GE(plan.ranks.size(), 4u);
    const Config config = request.config(overrides);
    const Device device = device_of(*device_spec_named(plan.device));
    for (const RankPlan& rank : plan.ranks) {
      const RankPlan own = plan_rank(config, {}, plan.world_size, rank.rank, device, plan.recompute);
      EXPECT_EQ(rank.step, own.step);
      EXPECT_EQ(rank.start, own.start);
      EXPECT_EQ(rank.load_peak_bytes, own.load_peak_bytes);
      EXPECT_EQ(rank.timeline.all(), own.timeline.all());
      EXPECT_EQ(traffic_text(rank), traffic_text(own));
    }
  }
}

}  // namespace
}  // namespace chassis
