// `chassis plan` and `chassis check` as programs: plans of a model too large for this machine, and of runs that follow.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <regex>

#include "host/base/json.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis {
namespace {

using test::Outcome;
using test::ScratchDirectory;

std::vector<std::string> chassis(std::vector<std::string> words) {
  words.insert(words.begin(), CHASSIS_TEST_BINARY_DIR "/bin/chassis");
  return words;
}

TEST(PlanVerb, PlansSeventyBillionParametersOn64Ranks) {
  ScratchDirectory scratch;
  const auto start = std::chrono::steady_clock::now();
  const Outcome run = test::run_process(chassis({"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml",
                                                 "--world", "64", "--json", "--html", "plan.html"}),
                                        scratch.path());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(run.exit_code, 0) << run.output;
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  std::printf("[ plan     ] %.1f s, %ld MiB\n", seconds.count(), usage.ru_maxrss >> 10);
#ifndef __SANITIZE_ADDRESS__  // its shadow memory counts too
  EXPECT_LT(usage.ru_maxrss >> 10, 1024) << "MiB";
#endif

  const Json plan = Json::parse(run.output.substr(run.output.find('{')));
  EXPECT_EQ(plan["parameters"], 70553706496);
  ASSERT_EQ(plan["ranks"].size(), 1u) << "64 divides every tensor";
  const Json& rank = plan["ranks"][0];
  EXPECT_EQ(rank["ranks"].size(), 64u);
  const Json& parts = rank["step"]["categories"];
  EXPECT_EQ(parts["parameters"]["peak"], 70553706496 * 4 / 64);
  // Two moments, and a small buffer for the norm.
  EXPECT_NEAR(parts["optimizer"]["peak"].get<double>(), 70553706496.0 * 8 / 64, 0.02 * 70553706496 * 8 / 64);
  // 82 units, 2 micro-batches; the last unit stays whole from forward to backward.
  std::map<std::string, Json> traffic;
  for (const Json& count : rank["traffic"]) traffic[count["op"].get<std::string>()] = count;
  EXPECT_EQ(traffic.at("all_gather")["calls"], 2 * (2 * 82 - 1));
  EXPECT_EQ(traffic.at("reduce_scatter")["calls"], 2 * 82);
  EXPECT_EQ(traffic.at("reduce_scatter")["bytes"], 2 * (70553706496 * 4 / 64 * 63));
  EXPECT_GT(std::filesystem::file_size(scratch / "plan.html"), 4096u);
}

// Micro-batches of padded rows are at most as long as seq_len, and the plan keeps that bound.
TEST(PlanVerb, AssumesRowsOfSeqLenAlsoIfTheyMayBeShorter) {
  ScratchDirectory scratch;
  const auto memory = [&](std::vector<std::string> words) {
    std::vector<std::string> all =
        chassis({"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml", "--world", "64", "--json"});
    all.insert(all.end(), words.begin(), words.end());
    const Outcome run = test::run_process(all, scratch.path());
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return Json::parse(run.output.substr(run.output.find('{')))["ranks"][0]["step"]["categories"];
  };
  const Json padded = memory({"data.packing=none"});
  EXPECT_EQ(padded, memory({"data.packing=none", "data.pad_to_seq_len=true"}));
  const Json shorter = memory({"data.packing=none", "train.seq_len=4096"});
  EXPECT_LT(shorter["activations"]["peak"], padded["activations"]["peak"]);
}

TEST(PlanVerb, AdvisesIfMemoryDoesNotSuffice) {
  ScratchDirectory scratch;
  const Outcome run = test::run_process(chassis({"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml",
                                                 "--mesh", "dp_shard=16", "--memory", "80GiB"}),
                                        scratch.path());
  ASSERT_EQ(run.exit_code, 4) << run.output;
  for (const char* part :
       {"does not fit:", "of 80 GiB", "advice", "mesh.dp_shard 16 → 32", "parallel.0.offload = \"cpu\"", "fits"})
    EXPECT_HAS(run.output, part);
}

// The recipes for LoRA, with nothing of the model but its config.json.
TEST(PlanVerb, PlansTheRecipesForLora) {
  struct Recipe {
    const char *name, *model, *config, *memory;
    int64_t parameters, trained;
  };
  const char* const llama_1b =
      R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 2048,
           "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
           "head_dim": 64, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
           "tie_word_embeddings": true, "torch_dtype": "bfloat16", "hidden_act": "silu"})";
  constexpr int64_t kTrainedOfLlama1b = 16 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 512) + 3 * (2048 + 8192));
  const Recipe recipes[] = {
      {"lora-qwen2.5-7b", "Qwen2.5-7B-Instruct",
       R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 152064, "hidden_size": 3584,
           "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
           "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
           "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu"})",
       "40GiB", 7615616512, 28 * 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))},
      {"lora-llama3.2-1b", "Llama-3.2-1B-Instruct", llama_1b, "8GiB", 1235814400, kTrainedOfLlama1b},
      {"qlora-llama3.2-1b", "Llama-3.2-1B-Instruct", llama_1b, "8GiB", 1235814400, kTrainedOfLlama1b},
      {"qlora-8b", "Llama-3.1-8B-Instruct",
       R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
           "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
           "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu"})",
       "16GiB", 8030261248, 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))}};
  for (const Recipe& recipe : recipes) {
    ScratchDirectory scratch;
    std::filesystem::create_directories(scratch / "models" + ("/" + std::string(recipe.model)));
    test::write_text(scratch / "models" + ("/" + std::string(recipe.model)) + "/config.json", recipe.config);
    const Outcome run = test::run_process(
        chassis({"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/" + std::string(recipe.name) + ".toml", "--memory",
                 recipe.memory, "--json", "tokenizer.plugin=bytes"}),
        scratch.path());
    ASSERT_EQ(run.exit_code, 0) << run.output;
    const Json plan = Json::parse(run.output.substr(run.output.find('{')));
    EXPECT_EQ(plan["parameters"], recipe.parameters + recipe.trained);
    EXPECT_EQ(plan["trained"], recipe.trained);
    EXPECT_HAS(run.output, "\"fits\": true") << recipe.name;
  }
}

// The same for reward models, whose head over the vocabulary is replaced by one of scores.
TEST(PlanVerb, PlansTheRecipesForRewardModelsOf70BillionParameters) {
  ScratchDirectory scratch;
  const std::string model = scratch / "models/Llama-3.1-70B-Instruct";
  std::filesystem::create_directories(model);
  test::write_text(model + "/config.json",
                   R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 8192,
                       "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
                       "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0,
                       "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
                       "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
                       "hidden_act": "silu"})");
  constexpr int64_t kParameters = 70553706496 - 128256LL * 8192 + 8192;
  constexpr int64_t kLora = 80 * 16 * (2 * (8192 + 8192) + 2 * (8192 + 1024) + 3 * (8192 + 28672));
  struct Recipe {
    const char* name;
    std::vector<std::string> words;
    int64_t parameters, trained;
    double peak_gib;  // as in docs/preference.md
  };
  const Recipe recipes[] = {
      {"full.toml", {"--memory", "80GiB"}, kParameters, kParameters, 42.0},
      {"lora.toml", {"--world", "8", "--memory", "80GiB"}, kParameters + kLora, kLora + 8192, 26.5},
      {"qlora.toml", {"--world", "8", "--memory", "24GiB"}, kParameters + kLora, kLora + 8192, 12.0},
      {"qlora.toml", {"--world", "2", "--memory", "80GiB"}, kParameters + kLora, kLora + 8192, 26.0}};
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.name);
    std::vector<std::string> words = {
        "plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama-3.1-70b-reward-" + std::string(recipe.name),
        "tokenizer.plugin=bytes", "--json"};
    words.insert(words.end(), recipe.words.begin(), recipe.words.end());
    const Outcome run = test::run_process(chassis(words), scratch.path());
    ASSERT_EQ(run.exit_code, 0) << run.output;
    const Json found = Json::parse(run.output.substr(run.output.find('{')));
    EXPECT_EQ(found["parameters"], recipe.parameters);
    EXPECT_EQ(found["trained"], recipe.trained);
    EXPECT_EQ(found["fits"], true);
    int64_t peak = 0;
    for (const Json& rank : found["ranks"]) peak = std::max(peak, rank["step"]["peak"].get<int64_t>());
    EXPECT_NEAR(static_cast<double>(peak) / 0x1p30, recipe.peak_gib, 0.02 * recipe.peak_gib);
  }
}

// Models with experts, whose configurations are the published ones.
TEST(PlanVerb, PlansTheRecipesForModelsWithExperts) {
  constexpr int64_t kLora = 48 * 16 * (2 * (2048 + 4096) + 2 * (2048 + 512));
  // Attention and shared expert; gate and up of 16 experts, which share A, and down.
  constexpr int64_t kLoraOfScout =
      48 * 16 *
      (2 * (5120 + 5120) + 2 * (5120 + 1024) + 3 * (5120 + 8192) + 16 * (5120 + 2 * 8192) + 16 * (8192 + 5120));
  struct Recipe {
    const char *name, *model, *as;
    std::vector<std::string> words;
    int64_t parameters, trained;
    double peak_gib;
  };
  const Recipe recipes[] = {
      {"deepseek-v2-lite", "DeepSeek-V2-Lite", "DeepSeek-V2-Lite", {"--world", "8"}, 15706484224, 15706484224, 25.6},
      {"deepseek-v2-lite",
       "DeepSeek-V2-Lite",
       "DeepSeek-V2-Lite",
       {"--world", "8", "train.seq_len=2048"},
       15706484224,
       15706484224,
       25.2},
      {"deepseek-v2-lite",
       "DeepSeek-V2-Lite",
       "DeepSeek-V2-Lite",
       {"--world", "64", "train.global_batch_size=64"},
       15706484224,
       15706484224,
       8.84},
      // The recipe with another model.
      {"deepseek-v2-lite",
       "Qwen3-235B-A22B",
       "DeepSeek-V2-Lite",
       {"--world", "1024", "train.global_batch_size=1024"},
       235093634560,
       235093634560,
       21.8},
      {"qwen3-30b-a3b-lora", "Qwen3-30B-A3B", "Qwen3-30B-A3B", {}, 30532122624 + kLora, kLora, 58.4},
      {"qwen3-30b-a3b-qlora", "Qwen3-30B-A3B", "Qwen3-30B-A3B", {}, 30532122624 + kLora, kLora, 17.1},
      {"llama4-scout-qlora",
       "Llama-4-Scout",
       "Llama-4-Scout-17B-16E-Instruct",
       {"--world", "8"},
       107769861120 + kLoraOfScout,
       kLoraOfScout,
       13.4},
      {"mixtral-8x7b-fsdp2",
       "Mixtral-8x7B-v0.1",
       "Mixtral-8x7B-v0.1",
       {"--world", "16"},
       46702792704,
       46702792704,
       53.5},
      {"mixtral-8x7b-fsdp2",
       "Mixtral-8x7B-v0.1",
       "Mixtral-8x7B-v0.1",
       {"--world", "64", "--mesh", "tp=2,dp_shard=8,dp_replicate=4"},
       46702792704,
       46702792704,
       53.5},
  };
  for (const Recipe& recipe : recipes) {
    SCOPED_TRACE(recipe.name + std::string(" with ") + recipe.model);
    ScratchDirectory scratch;
    const std::string model = scratch / "models/" + recipe.as;
    std::filesystem::create_directories(model);
    test::write_text(model + "/config.json", test::text_of_file(CHASSIS_TEST_SOURCE_DIR "/tests/golden/published/" +
                                                                std::string(recipe.model) + ".json"));
    std::vector<std::string> words = {"plan",
                                      CHASSIS_TEST_SOURCE_DIR "/configs/recipes/" + std::string(recipe.name) + ".toml",
                                      "tokenizer.plugin=bytes",
                                      "--json",
                                      "--memory",
                                      "80GiB"};
    words.insert(words.end(), recipe.words.begin(), recipe.words.end());
    const Outcome run = test::run_process(chassis(words), scratch.path());
    ASSERT_EQ(run.exit_code, 0) << run.output;
    const Json found = Json::parse(run.output.substr(run.output.find('{')));
    EXPECT_EQ(found["parameters"], recipe.parameters);
    EXPECT_EQ(found["trained"], recipe.trained);
    EXPECT_EQ(found["fits"], true);
    int64_t peak = 0;
    for (const Json& rank : found["ranks"]) peak = std::max(peak, rank["step"]["peak"].get<int64_t>());
    EXPECT_NEAR(static_cast<double>(peak) / 0x1p30, recipe.peak_gib, 0.02 * recipe.peak_gib);
  }
}

TEST(PlanVerb, Fits70BillionParametersIn4BitsOn48GiB) {
  const auto plan = [](const std::vector<std::string>& words, int exit_code = 0) {
    std::vector<std::string> command = {"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/qlora-70b-2x24gb.toml"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome run = test::run_process(chassis(command), ScratchDirectory().path());
    EXPECT_EQ(run.exit_code, exit_code) << run.output;
    return run.output;
  };
  EXPECT_HAS(plan({"--world", "2", "--memory", "24GiB"}), "memory      fits: ");
  EXPECT_HAS(plan({"--world", "1", "--memory", "48GiB"}), "memory      fits: ");
  EXPECT_HAS(plan({"--world", "2", "--memory", "24GiB", "quant.double_quant=false"}, 4), "quant.double_quant = true");
}

TEST(PlanVerb, RefusesInvalidArguments) {
  ScratchDirectory scratch;
  const auto refused = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml"});
    const Outcome run = test::run_process(chassis(words), scratch.path());
    EXPECT_EQ(run.exit_code, 2) << run.output;
    return run.output;
  };
  EXPECT_HAS(refused({"--world", "64", "--mesh", "tp=8,dp_shard=8"}),
             "mesh.tp = 8, but no strategy of [[parallel]] serves this axis");
  EXPECT_HAS(refused({"--world", "64", "--mesh", "dp_shard=8"}), "needs 8 ranks, but there are 64");
  EXPECT_HAS(refused({"--world", "64", "--mesh", "shards=7"}), "unknown key");
  EXPECT_HAS(refused({"--world", "64", "--mesh", "7"}), "axis=size");
  EXPECT_HAS(refused({"--world", "64", "--memory", "much"}), "is not a size");
  EXPECT_HAS(refused({"--world", "64", "--memory", "80"}), "--memory 80 has no unit");
  EXPECT_HAS(refused({}), "nothing says over how many ranks");
  EXPECT_HAS(refused({"--mesh", "dp_replicate=2,dp_shard=-1"}), "give --world N");
}

TEST(PlanVerb, PlansAMillionRanksLikeAFew) {
  ScratchDirectory scratch;
  const Outcome run = test::run_process(chassis({"plan", CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml",
                                                 "--world", "1000000", "train.global_batch_size=1000000"}),
                                        scratch.path());
  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_HAS(run.output, "1000000 ranks");
  EXPECT_HAS(run.output, "128256-999999: rank 128256 was rehearsed for all");
}

// ---- check

TEST(PlanVerb, CheckProvesTheMeshThatTheConfigurationNames) {
  ScratchDirectory scratch;
  const std::string recipe = CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml";
  const Outcome proven =
      test::run_process(chassis({"check", recipe, "--without-data", "mesh.dp_shard=4"}), scratch.path());
  EXPECT_EQ(proven.exit_code, 0) << proven.output;
  EXPECT_HAS(proven.output, "4 ranks (dp_shard=4)");
  const Outcome refused = test::run_process(chassis({"check", recipe, "mesh.tp=4", "mesh.dp_shard=1"}), scratch.path());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_HAS(refused.output, "no strategy of [[parallel]] serves this axis");
  const Outcome uneven = test::run_process(chassis({"check", recipe, "mesh.dp_shard=5"}), scratch.path());
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_HAS(uneven.output, "train.global_batch_size = 128 is not a multiple of");
}

// The configured device need not exist; its default dtype counts.
TEST(PlanVerb, CheckCountsActivationsInTheDtypeOfTheConfiguredDevice) {
  ScratchDirectory scratch;
  const std::string recipe = CHASSIS_TEST_SOURCE_DIR "/configs/recipes/llama3-70b.toml";
  const auto activations = [&](const std::string& setting) {
    const Outcome run =
        test::run_process(chassis({"check", recipe, "--without-data", "mesh.dp_shard=4", setting}), scratch.path());
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output.substr(run.output.find("activations"),
                             run.output.find("mesh  ") - run.output.find("activations"));
  };
  const std::string cuda = activations("run.device=\"cuda\"");
  EXPECT_EQ(cuda, activations("precision.compute=\"bf16\""));
  EXPECT_NE(cuda, activations("precision.compute=\"fp32\""));
}

TEST(PlanVerb, CheckFindsTheDataOrNamesTheLineOfItsPath) {
  ScratchDirectory scratch;
  test::write_text(scratch / "run.toml", R"(schema_version = 1
[run]
max_steps = 1
device = "cpu"
[model]
plugin = "llama"
config = { hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 2, intermediate_size = 64, vocab_size = 259, max_position_embeddings = 16 }
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "corpus.txt"
[[data.eval]]
path = "held_out"
[train]
seq_len = 32
[optimizer]
lr = 1e-3
)");
  const auto check = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"check", "run.toml"});
    return test::run_process(chassis(words), scratch.path());
  };
  const Outcome none = check({});
  EXPECT_EQ(none.exit_code, 2) << none.output;
  EXPECT_HAS(none.output, "run.toml:11");
  EXPECT_HAS(none.output, "corpus.txt");
  EXPECT_EQ(check({"--without-data"}).exit_code, 0);
  test::write_text(scratch / "corpus.txt", "a line\n");
  const Outcome half = check({});
  EXPECT_EQ(half.exit_code, 2) << half.output;
  EXPECT_HAS(half.output, "run.toml:13");
  std::filesystem::create_directory(scratch / "held_out");
  EXPECT_EQ(check({}).exit_code, 2) << "a folder without a file";
  test::write_text(scratch / "held_out/a.txt", "a line\n");
  const Outcome found = check({});
  EXPECT_EQ(found.exit_code, 0) << found.output;
  EXPECT_HAS(found.output, "train.seq_len = 32, but the weights of model 'llama' were made for 16 positions");
}

TEST(PlanVerb, RefusesSizesThatCanOnlyBeMistakes) {
  ScratchDirectory scratch;
  const auto refusal = [&](const std::string& sizes, const std::string& rest = "") {
    test::write_text(scratch / "run.toml",
                     "schema_version = 1\n[run]\nmax_steps = 1\ndevice = \"cpu\"\n[model]\nplugin = \"llama\"\n"
                     "config = { " +
                         sizes +
                         " }\n[[data.train]]\npath = \"nowhere.jsonl\"\nformat = \"tokens\"\n"
                         "[train]\nseq_len = 32\n[optimizer]\nlr = 1e-3\n" +
                         rest);
    const Outcome run = test::run_process(chassis({"plan", "run.toml"}), scratch.path());
    EXPECT_EQ(run.exit_code, 2) << run.output;
    EXPECT_HAS(run.output, "run.toml:");
    return run.output;
  };
  const std::string small = "num_attention_heads = 2, intermediate_size = 64, vocab_size = 256, ";
  EXPECT_HAS(refusal(small + "hidden_size = 1099511627776"), "head_dim 549755813888");
  EXPECT_HAS(refusal(small + "hidden_size = 1099511627776, head_dim = 64, num_hidden_layers = 10000"),
             "more than 2^56 parameters");
  EXPECT_HAS(refusal(small + "hidden_size = 32, num_hidden_layers = 1000000"),
             "num_hidden_layers is 1000000, expected 1 to 65536");
}

// ---- against runs

struct RealRun {
  const char* name;
  const char* parallel;
  int num_ranks;
};

class PlanAndRun : public testing::TestWithParam<RealRun> {};

double bytes_of(const std::string& number, const std::string& unit) {
  const std::map<std::string, double> factors = {{"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};
  return std::stod(number) * factors.at(unit);
}

TEST_P(PlanAndRun, AgreeWithinTenPercent) {
  ScratchDirectory scratch;
  std::string corpus;
  for (int i = 0; i < 4000; ++i) corpus += "line " + std::to_string(i * 37 % 1013) + " of a corpus\n";
  test::write_text(scratch / "corpus.txt", corpus);
  test::write_text(scratch / "run.toml", std::string(R"(schema_version = 1
[run]
output_dir = "out"
max_steps = 1
threads = 1
device = "cpu"
[model]
plugin = "llama"
config = { hidden_size = 256, num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 704, vocab_size = 4096 }
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "corpus.txt"
[data]
cache_dir = "cache"
[train]
seq_len = 128
micro_batch_size = 4
global_batch_size = 48
[optimizer]
plugin = "adamw"
lr = 1e-3
[checkpoint]
bucket_mib = 1
)") + GetParam().parallel);
  std::vector<std::string> words = chassis({"train", "run.toml"});
  if (GetParam().num_ranks > 1) words.insert(words.end(), {"--nproc", std::to_string(GetParam().num_ranks)});
  const Outcome run = test::run_process(words, scratch.path());
  ASSERT_EQ(run.exit_code, 0) << run.output;
  std::smatch found;
  const std::regex line(R"(memory peak ([\d.]+) (\w+) planned, ([\d.]+) (\w+) measured)");
  ASSERT_TRUE(std::regex_search(run.output, found, line)) << run.output;
  const double planned = bytes_of(found[1], found[2]), measured = bytes_of(found[3], found[4]);
  std::printf("[ memory   ] %-8s on %d: %.1f MiB planned, %.1f MiB measured (%+.1f %%)\n", GetParam().name,
              GetParam().num_ranks, planned / 0x1p20, measured / 0x1p20, 100 * (planned / measured - 1));
  EXPECT_GT(planned, 0.9 * measured) << run.output;
  EXPECT_LT(planned, 1.1 * measured) << run.output;
  EXPECT_HAS(run.output, "planned    measured\n  parameters");
}

INSTANTIATE_TEST_SUITE_P(
    Runs, PlanAndRun,
    testing::Values(RealRun{"single", "", 1}, RealRun{"selective", "[recompute]\nmode = \"selective\"\n", 1},
                    RealRun{"ddp", "[[parallel]]\nplugin = \"ddp\"\n", 2},
                    RealRun{"zero1", "[[parallel]]\nplugin = \"zero\"\nstage = 1\n", 2},
                    RealRun{"zero3", "[[parallel]]\nplugin = \"zero\"\nstage = 3\n", 4},
                    RealRun{"fsdp2", "[[parallel]]\nplugin = \"fsdp2\"\n", 3},
                    RealRun{"tensor", "[[parallel]]\nplugin = \"tensor\"\n", 2},
                    RealRun{"tensor_fsdp2",
                            "[mesh]\ntp = 2\n[[parallel]]\nplugin = \"tensor\"\n"
                            "sequence_parallel = true\n[[parallel]]\nplugin = \"fsdp2\"\n",
                            4},
                    RealRun{"all_to_all", "[[parallel]]\nplugin = \"context\"\n", 2},
                    RealRun{"gather", "[[parallel]]\nplugin = \"context\"\nmode = \"gather\"\n", 2}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace chassis
