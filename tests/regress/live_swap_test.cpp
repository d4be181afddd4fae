// Runs that change their strategies and providers while they train: losses, gradient norms and weights are those of one
// process that changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/regress/parallel_run.hpp"
#include "tests/regress/small_families.hpp"

namespace chassis::test {
namespace {

struct Layout {
  const char* name;
  const char* parallel;  // the value of the key
  std::vector<std::string> mesh = {};
};

std::vector<Layout> layouts_of_two() {
  return {{"ddp", R"([{ plugin = "ddp" }])"},
          {"fsdp2", R"([{ plugin = "fsdp2" }])"},
          {"zero1", R"([{ plugin = "zero", stage = 1 }])"},
          {"zero3", R"([{ plugin = "zero", stage = 3 }])"},
          {"tp2", R"([{ plugin = "tensor" }])"},
          {"pp2", R"([{ plugin = "pipeline" }])"},
          {"cp2", R"([{ plugin = "context" }])"}};
}

// A closed walk that takes every ordered pair of `count` layouts once, from layout 0 (Hierholzer).
std::vector<size_t> circuit(size_t count) {
  std::vector<std::vector<size_t>> left(count);
  for (size_t from = 0; from < count; ++from)
    for (size_t to = count; to-- > 0;)
      if (from != to) left[from].push_back(to);
  std::vector<size_t> open = {0}, walk;
  while (!open.empty()) {
    auto& next = left[open.back()];
    if (next.empty()) {
      walk.push_back(open.back());
      open.pop_back();
    } else {
      const size_t to = next.back();
      next.pop_back();
      open.push_back(to);
    }
  }
  std::reverse(walk.begin(), walk.end());
  return walk;
}

std::string swap_to(int64_t step, const Layout& layout) {
  return "[[swap]]\nat_step = " + std::to_string(step) + "\nset = { parallel = " + layout.parallel + " }\n";
}

// The swap events of a run, in order.
std::vector<nlohmann::json> swaps_of(const ParallelRun& run) {
  std::vector<nlohmann::json> out;
  std::istringstream lines(run.file("run/events.jsonl"));
  for (std::string line; std::getline(lines, line);)
    if (const auto event = nlohmann::json::parse(line); event["event"] == "swap") out.push_back(event);
  return out;
}

std::vector<nlohmann::json> with_outcome(const std::vector<nlohmann::json>& swaps, const std::string& outcome) {
  std::vector<nlohmann::json> out;
  for (const auto& swap : swaps)
    if (swap["outcome"] == outcome) out.push_back(swap);
  return out;
}

void expect_close(const Result& ours, const Result& alone) {
  ASSERT_EQ(ours.losses.size(), alone.losses.size());
  EXPECT_LE(largest_relative(ours.losses, alone.losses), 2e-6);
  EXPECT_LE(largest_relative(ours.grad_norms, alone.grad_norms), 1e-5);
  EXPECT_LE(largest_difference(ours.weights, alone.weights), 2e-6);
}

TEST(LiveSwap, WalksThroughAllPairsOfLayoutsWithoutAStepBetween) {
  const std::vector<Layout> layouts = layouts_of_two();
  const std::vector<size_t> walk = circuit(layouts.size());
  ASSERT_EQ(walk.size(), layouts.size() * (layouts.size() - 1) + 1);
  ParallelRun run(Variant::of_bits(0b110000));
  const Result alone = run(nullptr, 1, {});
  std::string swaps;
  for (size_t i = 1; i < walk.size(); ++i) swaps += swap_to(2, layouts[walk[i]]);
  run.append(swaps);
  const Strategy first{"ddp", {"plugin = \"ddp\""}, no_mesh};
  const Result ours = run(&first, 2, {});
  expect_close(ours, alone);
  const auto events = swaps_of(run);
  const auto committed = with_outcome(events, "committed");
  ASSERT_EQ(committed.size(), walk.size() - 1);
  for (size_t i = 0; i < committed.size(); ++i) {
    const auto& swap = committed[i];
    EXPECT_EQ(swap["generation"], i + 1);
    EXPECT_GT(swap["sent_bytes"].get<double>() + swap["received_bytes"].get<double>() +
                  swap["local_bytes"].get<double>() + swap["kept"].get<double>(),
              0.0);
  }
}

TEST(LiveSwap, ChangesStrategiesBetweenSteps) {
  ParallelRun run(Variant::of_bits(0b110000));
  const std::vector<std::string> steps = {"run.max_steps=12"};
  const Result alone = run(nullptr, 1, steps);
  const std::vector<Layout> layouts = layouts_of_two();
  run.append(swap_to(2, layouts[3]) + swap_to(4, layouts[4]) + swap_to(6, layouts[5]) + swap_to(8, layouts[6]) +
             swap_to(10, layouts[1]));
  const Strategy first{"fsdp2", {"plugin = \"fsdp2\""}, no_mesh};
  expect_close(run(&first, 2, steps), alone);
  EXPECT_EQ(with_outcome(swaps_of(run), "committed").size(), 5u);
}

TEST(LiveSwap, ChangesTheProviderOfAttention) {
  ParallelRun run(Variant::of_bits(0b010000));
  const Result alone = run(nullptr, 1, {});
  run.append("[[swap]]\nat_step = 2\nset = { \"attention.plugin\" = \"interval\" }\n");
  const Strategy first{"fsdp2", {"plugin = \"fsdp2\""}, no_mesh};
  expect_close(run(&first, 2, {}), alone);
  const auto committed = with_outcome(swaps_of(run), "committed");
  ASSERT_EQ(committed.size(), 1u);
  EXPECT_EQ(committed[0]["kept"], committed[0]["tensors"]);
  EXPECT_EQ(committed[0]["sent_bytes"], 0.0);
  EXPECT_NE(run.file("run/resolved.toml").find("plugin = \"interval\""), std::string::npos);
}

// The strategy fails on one rank when all tensors have moved to it.
TEST(LiveSwap, GoesBackIfARankCannotActivateTheNewState) {
  for (const char* rank : {"0", "1"}) {
    ParallelRun run(Variant::of_bits(0b110000));
    run.add_stub_plugins();
    const Result alone = run(nullptr, 1, {});
    run.append("[[swap]]\nat_step = 2\nset = { parallel = [{ plugin = \"faulty\", fault = \"error in bound\", rank = " +
               std::string(rank) + " }] }\n" + swap_to(3, layouts_of_two()[1]));
    const Strategy first{"tensor", {"plugin = \"tensor\""}, no_mesh, 2};
    expect_close(run(&first, 2, {}), alone);
    const auto swaps = swaps_of(run);
    const auto back = with_outcome(swaps, "rolled back");
    ASSERT_EQ(back.size(), 1u);
    EXPECT_NE(back[0]["cause"].get<std::string>().find("the strategy fails on purpose"), std::string::npos) << back[0];
    EXPECT_GT(back[0]["sent_bytes"], 0.0);
    EXPECT_EQ(with_outcome(swaps, "committed").size(), 1u);  // the one after it
  }
}

TEST(LiveSwap, RefusesBeforeTheFirstStepWhatNeedsARestart) {
  ParallelRun run(Variant::of_bits(0));
  run.append("[[swap]]\nat_step = 2\nset = { \"train.seq_len\" = 16 }\n");
  const Strategy first{"ddp", {"plugin = \"ddp\""}, no_mesh};
  const std::string errors = refusal_of(run, first, 2);
  EXPECT_NE(errors.find("train.seq_len"), std::string::npos) << errors;
  EXPECT_NE(errors.find("32 -> 16"), std::string::npos) << errors;
}

// A training with some kinds of tensors.
struct Trained {
  const char* name;
  const char* optimizer;  // the text of [optimizer]
  const char* more = "";  // further tables
  const char* family = "";
  bool has_blocks = false;  // which tensor parallelism would cut in so small a model
  friend void PrintTo(const Trained& t, std::ostream* out) { *out << t.name; }
};

constexpr const char* kAdamw = "plugin = \"adamw\"\nlr = 2e-3\nweight_decay = 0.1\neps = 1e-4\n";
constexpr const char* kEightBits = "plugin = \"adamw8bit\"\nlr = 2e-3\nmin_8bit_size = 512\neps = 1e-4\n";
constexpr const char* kMuon = "plugin = \"muon\"\nlr = 2e-3\n";
constexpr const char* kLora = "[adapter]\nplugin = \"lora\"\nrank = 4\n";
constexpr const char* kFourBits = "[quant]\nplugin = \"bnb4\"\n[adapter]\nplugin = \"lora\"\nrank = 4\n";

class Circuit : public testing::TestWithParam<Trained> {};

// The same walk; a swap between layouts that store blocks in other shapes is refused by name, and the run goes on.
TEST_P(Circuit, KeepsEveryKindOfTensor) {
  const Trained& trained = GetParam();
  std::vector<Layout> layouts = layouts_of_two();
  if (trained.has_blocks) std::erase_if(layouts, [](const Layout& l) { return l.name == std::string("tp2"); });
  const std::vector<size_t> walk = circuit(layouts.size());
  std::string model;
  for (const SmallFamily& family : small_families())
    if (family.name == trained.family) model = family.model;
  ParallelRun run(Variant::of_bits(0b110000), model);
  run.use_optimizer(trained.optimizer);
  run.append(trained.more);
  run.output_of(nullptr, 1);
  const auto alone = run.steps();
  std::string swaps;
  for (size_t i = 1; i < walk.size(); ++i) swaps += swap_to(2, layouts[walk[i]]);
  run.append(swaps);
  const Strategy first{"ddp", {"plugin = \"ddp\""}, no_mesh};
  run.output_of(&first, 2);
  const auto ours = run.steps();
  EXPECT_LE(largest_relative(ours.first, alone.first), 4e-6);
  EXPECT_LE(largest_relative(ours.second, alone.second), 1e-4);
  const auto events = swaps_of(run);
  size_t num_refused = 0;
  for (const auto& swap : with_outcome(events, "refused")) {
    ++num_refused;
    const std::string cause = swap["cause"];
    EXPECT_TRUE(cause.find("is stored as") != std::string::npos || cause.find("nothing changes") != std::string::npos ||
                cause.find("divide") != std::string::npos)
        << cause;
  }
  EXPECT_TRUE(with_outcome(events, "rolled back").empty());
  EXPECT_EQ(with_outcome(events, "committed").size() + num_refused, walk.size() - 1);
  std::printf("| %s | %zu of %zu swaps | losses %.1e |\n", trained.name, walk.size() - 1 - num_refused, walk.size() - 1,
              largest_relative(ours.first, alone.first));
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, Circuit,
    testing::Values(Trained{"adamw_lora", kAdamw, kLora}, Trained{"adamw_4bits", kAdamw, kFourBits, "", true},
                    Trained{"adamw_experts", kAdamw, "", "mixtral"},
                    Trained{"adamw_latents", kAdamw, "", "deepseek_v2"}, Trained{"adamw8bit", kEightBits, "", "", true},
                    Trained{"adamw8bit_lora", kEightBits, kLora},
                    Trained{"adamw8bit_experts", kEightBits, "", "qwen3_moe", true}, Trained{"muon", kMuon},
                    Trained{"muon_lora", kMuon, kLora}, Trained{"muon_experts", kMuon, "", "mixtral"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace chassis::test
