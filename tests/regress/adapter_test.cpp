// Low-rank adapters in whole runs: dropout draws the same bits however a step is computed, and a frozen base costs its
// weights alone.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/regress/planned_rank.hpp"
#include "tests/regress/small_run.hpp"

namespace chassis::test {
namespace {

std::vector<std::string> with_lora(std::vector<std::string> overrides, const std::string& dropout = "0.1") {
  overrides.insert(overrides.end(),
                   {"adapter.plugin=lora", "adapter.rank=4", "adapter.dropout=" + dropout, "export.plugin=safetensors",
                    "export.when=never", "checkpoint.contents=full", "train.global_batch_size=8"});
  return overrides;
}

class Adapter : public WithProviders {
 protected:
  Adapter() : run_(GetParam()) { run_.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18})); }
  SmallRun run_;
};
INSTANTIATE_TEST_SUITE_P(, Adapter, WithProviders::all());

TEST_P(Adapter, RecomputeDrawsTheSameBits) {
  const auto overrides = with_lora({"train.micro_batch_size=4"});
  const Trained kept = train(run_, 4, overrides, Recompute::kNone);
  for (const Recompute& recompute : {Recompute::kFull, Recompute::kSelective, Recompute{1, 1}})
    expect_same_bits(train(run_, 4, overrides, recompute), kept);
}

TEST_P(Adapter, AccumulationDrawsTheBitsOfOneLargeBatch) {
  const Trained whole = train(run_, 5, with_lora({"train.micro_batch_size=8"}));
  expect_close(train(run_, 5, with_lora({"train.micro_batch_size=2"})), whole, 1e-5);
  expect_close(train(run_, 5, with_lora({"train.micro_batch_size=1"})), whole, 1e-5);
  const Trained without = train(run_, 5, with_lora({"train.micro_batch_size=8"}, "0"));
  EXPECT_GT(relative_l2(whole.gradients, without.gradients), 1e-2) << "dropout changes a step";
}

TEST_P(Adapter, TheSeedOfTheRunIsThatOfDropout) {
  const auto overrides = with_lora({"train.micro_batch_size=4"});
  const Trained first = train(run_, 3, overrides);
  expect_same_bits(train(run_, 3, overrides), first);
}

// A rank draws the bits of its rows of the step.
TEST(AdapterOnTwoRanks, TrainsLikeOneProcess) {
  const SmallRun run({"sdpa", "[\"aten\"]"});
  run.write(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18}));
  const auto losses = [&](const std::vector<std::string>& more) {
    std::filesystem::remove_all(run.folder() / "run");
    std::vector<std::string> command = {CHASSIS_PROGRAM,   "train",         run.config_path(),
                                        "run.max_steps=4", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR};
    for (const std::string& setting : with_lora(more, "0.3")) command.push_back(setting);
    Process process(command, run.folder().path());
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<double> found;
    std::istringstream metrics(text_of_file(run.folder() / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = nlohmann::json::parse(line);
      if (!record.contains("grad_norm")) continue;
      found.push_back(record.at("loss"));
      found.push_back(record.at("grad_norm"));
    }
    return found;
  };
  const auto alone = losses({"train.micro_batch_size=8"});
  ASSERT_EQ(alone.size(), 8u);
  write_text(run.config_path(), text_of_file(run.config_path()) + "[[parallel]]\nplugin = \"ddp\"\n");
  for (const char* micro_batch : {"train.micro_batch_size=4", "train.micro_batch_size=2"}) {
    const auto ranks = losses({micro_batch, "--nproc", "2"});
    ASSERT_EQ(ranks.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_LE(relative(ranks[i], alone[i]), 1e-5) << i;
  }
}

// Bytes by category, from the sizes of the parameters alone.
TEST(FrozenBase, CostsItsWeightsInTheComputeDtypeAndNothingElse) {
  for (const char* compute : {"fp32", "bf16"}) {
    SCOPED_TRACE(compute);
    const uint64_t narrow = std::string(compute) == "bf16" ? 2 : 4;
    PlannedRank rank(
        divisible_llama("[adapter]\nplugin = \"lora\"\nrank = 2\n"), 1, 0,
        {"precision.compute=" + std::string(compute), "export.plugin=safetensors", "checkpoint.contents=full"});
    uint64_t frozen = 0, trained = 0;
    for (const auto& p : rank.parameters().all()) {
      EXPECT_EQ(p->trainable, p->added) << p->name;
      (p->trainable ? trained : frozen) += static_cast<uint64_t>(numel(p->descriptor.global_shape));
    }
    ASSERT_GT(trained, 0u);
    ASSERT_GT(frozen, 5 * trained);
    rank.step();
    rank.step();
    const auto live = [](MemoryCategory category) { return meta_memory_usage(kMetaHost).of(category).live_bytes; };
    EXPECT_EQ(live(MemoryCategory::kParameters), frozen * narrow + trained * (narrow == 2 ? 6 : 4));
    EXPECT_EQ(live(MemoryCategory::kGradients), 4 * trained);
    EXPECT_EQ(live(MemoryCategory::kOptimizer), 8 * trained);
  }
}

// The input of a frozen linear is kept only for its branch.
TEST(FrozenBase, KeepsNoInputForGradientsOfItsWeights) {
  const auto kept = [](const std::string& targets) {
    PlannedRank rank(divisible_llama("[adapter]\nplugin = \"lora\"\nrank = 2\ntargets = [" + targets + "]\n"), 1, 0,
                     {"export.plugin=safetensors", "checkpoint.contents=full"});
    rank.step();
    reset_peak_meta_memory();
    rank.step();
    return meta_memory_usage(kMetaHost).of(MemoryCategory::kActivations).peak_bytes;
  };
  const std::string last = "\"model\\\\.layers\\\\.2\\\\.mlp\\\\.down_proj\"";
  EXPECT_LT(2 * kept(last), kept("\"all-linear\"")) << "layers below the first branch keep nothing";
}

}  // namespace
}  // namespace chassis::test
