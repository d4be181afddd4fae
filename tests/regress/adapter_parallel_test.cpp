// A run with LoRA on several processes gives the numbers of one process under every strategy, with dropout too, and
// continues on another number of processes.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/regress/small_run.hpp"
#include "tests/regress/whole_tensors.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/largest_relative.hpp"

namespace chassis::test {
namespace {

struct Strategy {
  const char* name;
  std::vector<std::string> toml;
};
const std::vector<Strategy> kStrategies = {{"ddp", {"plugin = \"ddp\""}},
                                           {"fsdp2", {"plugin = \"fsdp2\"", "forward_prefetch = 1"}},
                                           {"zero1", {"plugin = \"zero\"", "stage = 1"}},
                                           {"zero2", {"plugin = \"zero\"", "stage = 2"}},
                                           {"zero3",
                                            {"plugin = \"zero\"", "stage = 3",
                                             "stage3_param_persistence_threshold = 40"}}};

struct Adapter {
  const char* name;
  bool tied;
  const char* toml;
  int key_value_heads = 2;
};
const std::vector<Adapter> kAdapters = {
    {"lora", false, "rank = 4\n"},
    {"rslora_dropout", false, "rank = 3\nuse_rslora = true\ndropout = 0.2\ntargets = [\"q_proj\", \"up_proj\"]\n"},
    {"tied_saved", true, "rank = 4\nmodules_to_save = [\"embed_tokens\"]\nlora_plus_ratio = 4.0\n"}};

struct Row {
  size_t strategy;
  int ranks;
  size_t adapter;
  std::string name() const {
    return std::string(kStrategies[strategy].name) + "_on_" + std::to_string(ranks) + "_" + kAdapters[adapter].name;
  }
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name(); }
};

// Every strategy on 2, 3 and 4 ranks, and every strategy and number of ranks with each adapter.
std::vector<Row> some_rows() {
  std::vector<Row> rows;
  for (size_t s = 0; s < kStrategies.size(); ++s)
    for (int ranks : {2, 3, 4}) rows.push_back({s, ranks, (s + static_cast<size_t>(ranks)) % kAdapters.size()});
  return rows;
}
std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (size_t s = 0; s < kStrategies.size(); ++s)
    for (int ranks : {2, 3, 4})
      for (size_t a = 0; a < kAdapters.size(); ++a) rows.push_back({s, ranks, a});
  return rows;
}

struct Result {
  std::vector<double> losses, grad_norms;
  std::map<std::string, std::vector<float>> tensors;  // from the last checkpoint
};

class AdapterRun {
 public:
  explicit AdapterRun(const Adapter& adapter) {
    std::ostringstream toml;
    toml << "schema_version = 1\n[run]\noutput_dir = \"run\"\nmax_steps = 6\nseed = 5\nthreads = 1\ndevice = \"cpu\"\n"
         << "[plugins]\npath = [\"" << CHASSIS_TEST_PLUGIN_DIR << "\"]\n"
         << "[model]\npath = \"base\"\n[adapter]\nplugin = \"lora\"\n"
         << adapter.toml
         << "[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
         << "[train]\nseq_len = 32\nglobal_batch_size = 12\nmicro_batch_size = 1\n"
         << "[optimizer]\nplugin = \"adamw\"\nlr = 2e-3\nweight_decay = 0.1\neps = 1e-4\n"
         << "[attention]\nplugin = \"sdpa\"\n[kernels]\nplugins = [\"fused\", \"aten\"]\n"
         << "[precision]\ncompute = \"fp32\"\n[checkpoint]\nbucket_mib = 1\n[export]\nwhen = \"never\"\n"
         << "[comm]\ntimeout_s = 60\n";
    toml_ = toml.str();
    write_text(folder_ / "tokens.jsonl",
               token_rows(random_documents({9, 40, 3, 77, 21, 14, 35, 2, 60, 18, 33, 90, 41, 7, 64}, 96)));
    make_base(adapter.tied, adapter.key_value_heads);
  }

  const ScratchDirectory& folder() const { return folder_; }

  // A NULL strategy means one process. Continues an existing run.
  Outcome train(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    std::string toml = toml_;
    if (strategy) {
      toml += "[[parallel]]\n";
      for (const std::string& line : strategy->toml) toml += line + "\n";
    }
    write_text(folder_ / "run.toml", toml);
    std::vector<std::string> command = {CHASSIS_PROGRAM, "train", "run.toml"};
    command.insert(command.end(), overrides.begin(), overrides.end());
    if (ranks > 1) command.insert(command.end(), {"--nproc", std::to_string(ranks)});
    const Outcome outcome = run_process(command, folder_.path());
    if (outcome.exit_code != 0) throw std::runtime_error(outcome.output);
    return outcome;
  }

  Result result(const std::string& run = "run", int64_t step = 6) {
    Result result;
    std::istringstream metrics(text_of_file(folder_ / (run + "/metrics.jsonl")));
    for (std::string line; std::getline(metrics, line);) {
      const auto record = nlohmann::json::parse(line);
      result.losses.push_back(record.at("loss"));
      result.grad_norms.push_back(record.at("grad_norm"));
    }
    LoadedPlugins plugins;
    const std::string checkpoint = folder_ / (run + "/checkpoints/step-00000" + std::to_string(step));
    for (const auto& [name, tensor] : whole_tensors(checkpoint, plugins)) result.tensors[name] = floats_of(tensor);
    return result;
  }

  Result operator()(const Strategy* strategy, int ranks, const std::vector<std::string>& overrides = {}) {
    std::filesystem::remove_all(folder_ / "run");
    train(strategy, ranks, overrides);
    return result();
  }

 private:
  // A model directory, exported by a run of one step from random weights.
  void make_base(bool tied, int key_value_heads) {
    write_text(folder_ / "base.toml",
               "schema_version = 1\n[run]\noutput_dir = \"made\"\nmax_steps = 1\ndevice = \"cpu\"\n[plugins]\npath = "
               "[\"" CHASSIS_TEST_PLUGIN_DIR
               "\"]\n[model]\nplugin = \"llama\"\nconfig = { vocab_size = 96, hidden_size = 36, intermediate_size = 58"
               ", num_hidden_layers = 3, num_attention_heads = 6, attention_bias = true, initializer_range = 0.1, "
               "num_key_value_heads = " +
                   std::to_string(key_value_heads) + ", tie_word_embeddings = " + (tied ? "true" : "false") +
                   " }\n[[data.train]]\npath = \"tokens.jsonl\"\nformat = \"tokens\"\n[data]\ncache_dir = \"cache\"\n"
                   "[train]\nseq_len = 32\n[optimizer]\nlr = 1e-3\n[attention]\nplugin = \"sdpa\"\n[kernels]\nplugins "
                   "= [\"aten\"]\n[precision]\ncompute = \"fp32\"\n");
    const Outcome made = run_process({CHASSIS_PROGRAM, "train", "base.toml"}, folder_.path());
    if (made.exit_code != 0) throw std::runtime_error(made.output);
    std::filesystem::rename(folder_ / "made/final", folder_ / "base");
  }

  ScratchDirectory folder_;
  std::string toml_;
};

double largest_difference(const Result& ours, const Result& theirs) {
  EXPECT_EQ(ours.tensors.size(), theirs.tensors.size());
  double difference = 0.0;
  for (const auto& [name, values] : theirs.tensors)
    for (size_t i = 0; i < values.size(); ++i)
      difference = std::max(difference, std::abs(static_cast<double>(values[i]) - ours.tensors.at(name).at(i)));
  return difference;
}

class AdapterParallel : public testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Some, AdapterParallel, testing::ValuesIn(some_rows()),
                         [](const auto& info) { return info.param.name(); });
INSTANTIATE_TEST_SUITE_P(Matrix, AdapterParallel, testing::ValuesIn(all_rows()),
                         [](const auto& info) { return info.param.name(); });

// A run in one process, which many others are compared with.
struct Alone {
  explicit Alone(const Adapter& adapter) : run(adapter) {}
  AdapterRun run;
  Result result;
};
Alone& alone_with(const Adapter& adapter, const std::vector<std::string>& overrides) {
  static std::map<std::string, std::unique_ptr<Alone>> known;
  std::string key = adapter.name;
  for (const std::string& word : overrides) key += " " + word;
  std::unique_ptr<Alone>& found = known[key];
  if (!found) {
    found = std::make_unique<Alone>(adapter);
    found->result = found->run(nullptr, 1, overrides);
  }
  return *found;
}

void expect_the_numbers_of_one_process(const Strategy& strategy, int ranks, const Adapter& adapter,
                                       const std::vector<std::string>& overrides = {}) {
  auto& [run, alone] = alone_with(adapter, overrides);
  ASSERT_EQ(alone.losses.size(), 6u);
  const Result ours = run(&strategy, ranks, overrides);
  const double loss = largest_relative(ours.losses, alone.losses),
               norm = largest_relative(ours.grad_norms, alone.grad_norms), tensors = largest_difference(ours, alone);
  EXPECT_LE(loss, 2e-6);
  EXPECT_LE(norm, 1e-5);
  EXPECT_LE(tensors, 2e-6);
  std::printf("| %s | %d | %s | %.1e | %.1e | %.1e |\n", strategy.name, ranks, adapter.name, loss, norm, tensors);
}

TEST_P(AdapterParallel, GivesTheNumbersOfOneProcess) {
  const Row row = GetParam();
  expect_the_numbers_of_one_process(kStrategies[row.strategy], row.ranks, kAdapters[row.adapter]);
}

// These stacks communicate in every layer of every micro-batch.
const std::vector<std::string> kLargeMicrobatches = {"train.micro_batch_size=3"};

// The branches of q, k, v, gate and up are divided at B, those of o and down at A.
TEST(AdapterTensorParallel, GivesTheNumbersOfOneProcess) {
  const Strategy tensor = {"tensor", {"plugin = \"tensor\""}};
  for (const Adapter& adapter : kAdapters) expect_the_numbers_of_one_process(tensor, 2, adapter, kLargeMicrobatches);
  const Strategy both = {"tensor_fsdp2",
                         {"plugin = \"tensor\"", "[[parallel]]", "plugin = \"fsdp2\"", "[mesh]", "tp = 2"}};
  expect_the_numbers_of_one_process(both, 4, kAdapters[0], kLargeMicrobatches);
  const Strategy context = {"context_fsdp2",
                            {"plugin = \"context\"", "[[parallel]]", "plugin = \"fsdp2\"", "[mesh]", "cp = 2"}};
  expect_the_numbers_of_one_process(context, 4, kAdapters[0], kLargeMicrobatches);
  const Strategy sequence = {"sequence", {"plugin = \"tensor\"", "sequence_parallel = true"}};
  expect_the_numbers_of_one_process(sequence, 2, kAdapters[2], kLargeMicrobatches);
  const Strategy ring = {"sequence_ring", {"plugin = \"tensor\"", "sequence_parallel = true", "overlap = \"ring\""}};
  expect_the_numbers_of_one_process(ring, 2, kAdapters[0], kLargeMicrobatches);
  const Adapter dropout = {"lora, dropout everywhere", false, "rank = 4\ndropout = 0.2\n"};
  expect_the_numbers_of_one_process(tensor, 2, dropout, kLargeMicrobatches);
  expect_the_numbers_of_one_process(both, 4, dropout, kLargeMicrobatches);
  expect_the_numbers_of_one_process(sequence, 2, dropout, kLargeMicrobatches);
  expect_the_numbers_of_one_process(context, 4, dropout, kLargeMicrobatches);
  const Adapter shared_head = {"lora, one key-value head", false, "rank = 4\n", 1};
  expect_the_numbers_of_one_process(both, 4, shared_head, kLargeMicrobatches);
  expect_the_numbers_of_one_process(sequence, 2, shared_head, kLargeMicrobatches);
}

// Each rank has two pieces of the positions of every row.
TEST(AdapterContextParallel, DropsTheElementsOfOneProcess) {
  const Adapter dropout = {"lora, dropout everywhere", false, "rank = 4\ndropout = 0.2\n"};
  const Strategy gather = {"gather", {"plugin = \"context\"", "mode = \"gather\""}},
                 ring = {"ring", {"plugin = \"context\"", "mode = \"ring\""}},
                 both = {"ring_fsdp2",
                         {"plugin = \"context\"", "mode = \"ring\"", "[[parallel]]", "plugin = \"fsdp2\"", "[mesh]",
                          "cp = 2"}},
                 tensor = {"gather_tensor",
                           {"plugin = \"context\"", "mode = \"gather\"", "[[parallel]]", "plugin = \"tensor\"",
                            "[mesh]", "cp = 2", "tp = 2"}};
  expect_the_numbers_of_one_process(gather, 3, dropout, kLargeMicrobatches);
  for (const Strategy& strategy : {ring, gather})
    expect_the_numbers_of_one_process(strategy, 2, dropout, kLargeMicrobatches);
  for (const Strategy& strategy : {both, tensor})
    expect_the_numbers_of_one_process(strategy, 4, dropout, kLargeMicrobatches);
}

TEST(AdapterPipelineParallel, GivesTheNumbersOfOneProcess) {
  const Strategy stages = {"pipeline", {"plugin = \"pipeline\"", "schedule = \"zbv\""}};
  for (const Adapter& adapter : kAdapters) expect_the_numbers_of_one_process(stages, 2, adapter, kLargeMicrobatches);
  const Strategy both = {"pipeline_fsdp2",
                         {"plugin = \"pipeline\"", "[[parallel]]", "plugin = \"fsdp2\"", "[mesh]", "pp = 2"}};
  expect_the_numbers_of_one_process(both, 4, kAdapters[1], kLargeMicrobatches);
}

TEST(AdapterDropout, DropsTheSameElementsUnderRecomputeAndAccumulation) {
  AdapterRun run(kAdapters[1]);
  const Result kept = run(nullptr, 1);
  for (const char* mode : {"recompute.mode=full", "recompute.mode=selective"}) {
    const Result again = run(nullptr, 1, {mode});
    EXPECT_EQ(again.losses, kept.losses) << mode;
    EXPECT_EQ(again.tensors, kept.tensors) << mode;
  }
  const Result together = run(nullptr, 1, {"train.micro_batch_size=4"});
  EXPECT_LE(largest_relative(together.losses, kept.losses), 2e-6);
  const Result other = run(nullptr, 1, {"run.seed=6"});
  EXPECT_GT(largest_relative(other.losses, kept.losses), 1e-5) << "dropout has an effect";
}

TEST(AdapterResume, GoesOnWithFewerProcesses) {
  for (const size_t strategy : {1, 4}) {  // fsdp2 and zero3
    SCOPED_TRACE(kStrategies[strategy].name);
    AdapterRun run(kAdapters[2]);
    const Result alone = run(nullptr, 1);
    std::filesystem::remove_all(run.folder() / "run");
    const Strategy* parallel = &kStrategies[strategy];
    run.train(parallel, 4, {"run.max_steps=2"});
    const Result saved = run.result("run", 2);
    run.train(parallel, 2, {"run.max_steps=4"});
    run.train(parallel, 1, {"run.max_steps=6"});
    const Result resumed = run.result();
    EXPECT_EQ(saved.losses, std::vector<double>(resumed.losses.begin(), resumed.losses.begin() + 2));
    EXPECT_LE(largest_relative(resumed.losses, alone.losses), 2e-6);
    EXPECT_LE(largest_difference(resumed, alone), 2e-6);
  }
}

TEST(AdapterResume, EndsWithTheBitsOfAnUninterruptedRunOnTheSameMesh) {
  AdapterRun run(kAdapters[1]);
  const Strategy* fsdp2 = &kStrategies[1];
  const Result whole = run(fsdp2, 2);
  std::filesystem::remove_all(run.folder() / "run");
  run.train(fsdp2, 2, {"run.max_steps=3"});
  run.train(fsdp2, 2);
  const Result halves = run.result();
  EXPECT_EQ(halves.losses, whole.losses);
  EXPECT_EQ(halves.tensors, whole.tensors);
}

// Bytes at rest: the frozen base in the precision of the run without gradient or states, and a part of it per rank.
TEST(AdapterParallelMemory, TheBaseHasNoGradientAndNoStates) {
  AdapterRun run(kAdapters[0]);
  const Result trained = run(nullptr, 1);
  size_t states = 0;
  for (const auto& [name, values] : trained.tensors) {
    EXPECT_TRUE(name.find("lora_") != std::string::npos) << name << " is saved, but not trained";
    states += name.find(".exp_avg") != std::string::npos;
  }
  EXPECT_EQ(trained.tensors.size(), 3u * 7u * 2u * 3u) << "layers × linears × A and B × (value and two states)";
  EXPECT_EQ(states, 3u * 7u * 2u * 2u);
}

}  // namespace
}  // namespace chassis::test
