// More runs on the simulated devices, with the label slow: every optimizer, provider, layout of rows, adapter and verb
// gives the numbers of the CPU, or is refused with the message that is listed here.
#include <gtest/gtest.h>

#include <filesystem>

#include "host/base/error.hpp"
#include "tests/regress/simulated_run.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;

const std::string kParallel = "[[parallel]]\nplugin = ";
const Words kBf16Compute = {"precision.compute=bf16"},
            kRmsNorm = {"kernels.plugins=[\"cuda_rms_norm_simulated\", \"aten\"]"};

std::string strategy(const std::string& name, const std::string& options = "") {
  return kParallel + "\"" + name + "\"\n" + options;
}

std::string name_of(const testing::TestParamInfo<NamedRun>& row) { return row.param.name; }

// ---- one device

std::vector<NamedRun> models() {
  return {{"tied", {"model.config.tie_word_embeddings=true"}},
          {"one_key_value_head", {"model.config.num_key_value_heads=1"}},
          {"biases", {"model.config.attention_bias=true", "model.config.mlp_bias=true"}},
          {"frozen_embedding", {}, "[freeze]\npatterns = [\"embed\"]\n"},
          {"trained_norms_only", {}, "[freeze]\ntrain_only = [\"norm\"]\n"},
          {"recompute_auto", {"recompute.mode=auto"}},
          {"tied_recomputed", {"model.config.tie_word_embeddings=true", "recompute.mode=full"}}};
}

std::vector<NamedRun> rows() {
  std::vector<NamedRun> all;
  for (const char* packing : {"best_fit", "concat_split", "none"})
    for (const bool recomputes : {false, true}) {
      Words words = {std::string("data.packing=") + packing, "train.seq_len=64", "train.micro_batch_size=3"};
      if (recomputes) words.emplace_back("recompute.mode=selective");
      all.push_back({std::string(packing) + (recomputes ? "_recomputed" : ""), words});
    }
  all.push_back({"whole_rows", {"data.packing=none", "train.seq_len=64", "data.pad_to_seq_len=true"}});
  all.push_back({"evaluated_twice", {"eval.every_steps=2"}});
  all.push_back({"clipped", {"optimizer.max_grad_norm=0.05"}});
  all.push_back({"not_clipped", {"optimizer.max_grad_norm=0"}});
  return all;
}

std::vector<NamedRun> optimizers() {
  const std::string eight = "optimizer.plugin=adamw8bit_simulated", blocks = "optimizer.min_8bit_size=256",
                    offload = "parallel.0.offload=cpu";
  return {{"adamw_betas", {"optimizer.betas=[0.8, 0.95]", "optimizer.weight_decay=0.1"}},
          {"sgd_momentum", {"optimizer.plugin=sgd", "optimizer.momentum=0.9", "optimizer.nesterov=true"}},
          {"sgd_offloaded", {"optimizer.plugin=sgd", "optimizer.momentum=0.9", offload}, kFsdp2},
          {"lion_offloaded", {"optimizer.plugin=lion", "optimizer.lr=1e-4", offload}, kFsdp2},
          {"muon_offloaded_by_zero",
           {"optimizer.plugin=muon"},
           strategy("zero", "stage = 3\noffload_optimizer_device = \"cpu\"\n")},
          {"adamw_offloaded_in_part",
           {},
           strategy("zero",
                    "offload_optimizer_device = \"cpu\"\noffload_param_device = \"cpu\"\n"
                    "offload_optimizer_fraction = 0.5\n")},
          {"adamw8bit_of_bitsandbytes", {eight, blocks, "optimizer.order=bnb", "optimizer.nonzero_squares=true"}},
          {"adamw8bit_fp32_embeddings", {eight, blocks, "optimizer.embeddings=fp32"}},
          {"adamw8bit_fp32_states", {eight, "optimizer.min_8bit_size=1000000", "optimizer.order=bnb"}}};
}

// Operations that the providers of the CPU refuse go to the next one in the list.
std::vector<NamedRun> providers() {
  return {{"attention_auto", {"attention.plugin=auto"}, "", kFp32, "\"sdpa\""},
          {"attention_of_the_cpu_falls_to_sdpa",
           {"attention.plugin=interval", "kernels.plugins=[\"aten\", \"sdpa\"]"},
           "",
           kFp32,
           "\"sdpa\""},
          {"kernels_of_the_cpu_fall_to_aten",
           {"kernels.plugins=[\"fused\", \"reference\", \"aten\"]"},
           "",
           kFp32,
           "\"aten\""},
          {"rms_norm_recomputed", joined(kRmsNorm, {"recompute.mode=full"}), "", kFp32, "cuda_rms_norm_simulated"},
          {"rms_norm_frozen", kRmsNorm, "[freeze]\npatterns = [\"norm\"]\n", kFp32, "cuda_rms_norm_simulated"}};
}

std::vector<NamedRun> adapters() {
  const auto lora = [](const std::string& options) { return "[adapter]\nplugin = \"lora\"\nrank = 4\n" + options; };
  const auto bits = [](const std::string& options) { return kFourBits + options; };
  const std::string eight = "optimizer.plugin=adamw8bit_simulated";
  return {{"rslora", {}, lora("use_rslora = true\ntargets = [\"q_proj\", \"up_proj\"]\n")},
          {"lora_plus", {}, lora("lora_plus_ratio = 4.0\ninit = \"gaussian\"\n")},
          {"lora_with_saved_embeddings", {}, lora("modules_to_save = [\"embed_tokens\"]\n")},
          {"lora_with_biases", {"model.config.attention_bias=true"}, lora("bias = \"lora_only\"\n")},
          {"lora_recomputed", {"recompute.mode=full"}, lora("")},
          {"lora_accumulated", {"train.micro_batch_size=3"}, lora("")},
          {"fp4_double", {}, bits("type = \"fp4\"\ndouble_quant = true\nblock_size = 32\n")},
          {"nf4_recomputed", {"recompute.mode=full"}, bits("")},
          {"nf4_selective", {"recompute.mode=selective"}, bits("double_quant = true\n")},
          {"nf4_with_8_bit_states", {eight, "optimizer.min_8bit_size=0"}, bits("")}};
}

std::vector<NamedRun> in_bf16() {
  std::vector<NamedRun> all = {{"offloaded", {"parallel.0.offload=cpu"}, kFsdp2},
                               {"lora", {}, kLoraOfRank4},
                               {"four_bits", {}, kFourBits},
                               {"rms_norm", kRmsNorm},
                               {"recompute_full", {"recompute.mode=full"}},
                               {"recompute_selective", {"recompute.mode=selective"}},
                               {"accumulated", {"train.micro_batch_size=3"}},
                               {"documents", {"data.packing=best_fit", "train.seq_len=64"}},
                               {"several_lengths", {"data.packing=none", "train.seq_len=64"}},
                               {"one_key_value_head", {"model.config.num_key_value_heads=1"}}};
  for (NamedRun& run : all) {
    run.overrides = joined(run.overrides, kBf16Compute);
    run.tolerance = kBf16;
  }
  return all;
}

class SimulatedSuite : public testing::TestWithParam<NamedRun> {};
TEST_P(SimulatedSuite, GivesTheNumbersOfTheCpu) { expect_the_numbers_of_the_cpu(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Models, SimulatedSuite, testing::ValuesIn(models()), name_of);
INSTANTIATE_TEST_SUITE_P(Rows, SimulatedSuite, testing::ValuesIn(rows()), name_of);
INSTANTIATE_TEST_SUITE_P(Optimizers, SimulatedSuite, testing::ValuesIn(optimizers()), name_of);
INSTANTIATE_TEST_SUITE_P(Providers, SimulatedSuite, testing::ValuesIn(providers()), name_of);
INSTANTIATE_TEST_SUITE_P(Adapters, SimulatedSuite, testing::ValuesIn(adapters()), name_of);
INSTANTIATE_TEST_SUITE_P(Bf16, SimulatedSuite, testing::ValuesIn(in_bf16()), name_of);

// ---- two devices; both sides run two ranks

const std::vector<std::pair<std::string, std::string>> kSharding = {
    {"ddp", strategy("ddp")},
    {"fsdp2", kFsdp2},
    {"zero1", strategy("zero", "stage = 1\n")},
    {"zero2", strategy("zero", "stage = 2\n")},
    {"zero3", strategy("zero", "stage = 3\nstage3_param_persistence_threshold = 0\n")},
    {"tensor", strategy("tensor")},
    {"sequence", strategy("tensor", "sequence_parallel = true\n")},
    {"context", strategy("context")},
    {"pipeline", strategy("pipeline")}};

std::vector<NamedRun> sharded() {
  const std::vector<NamedRun> what = {
      {"sgd", {"optimizer.plugin=sgd", "optimizer.momentum=0.9"}},
      {"lion", {"optimizer.plugin=lion", "optimizer.lr=1e-4"}},
      {"adamw8bit", {"optimizer.plugin=adamw8bit_simulated", "optimizer.min_8bit_size=256"}},
      {"rms_norm", kRmsNorm},
      {"recomputed", {"recompute.mode=selective"}},
      {"documents", {"data.packing=best_fit", "train.seq_len=64"}}};
  std::vector<NamedRun> all;
  for (const auto& [name, toml] : kSharding)
    for (const NamedRun& run : what) {
      Words words = joined(run.overrides, {"train.micro_batch_size=3"});
      // Ranks of tp have no whole blocks of these parameters, so their states are in fp32.
      if (run.name == "adamw8bit" && (name == "tensor" || name == "sequence"))
        words.emplace_back("optimizer.min_8bit_size=4096");
      all.push_back({name + "_" + run.name, words, toml});
    }
  all.push_back({"fsdp2_muon", {"optimizer.plugin=muon", "parallel.0.offload=cpu"}, kFsdp2});
  all.push_back({"zero3_muon",
                 {"optimizer.plugin=muon"},
                 strategy("zero", "stage = 3\noffload_optimizer_device = \"cpu\"\noffload_param_device = \"cpu\"\n")});
  return all;
}

class SimulatedSuiteOnTwo : public testing::TestWithParam<NamedRun> {
 protected:
  void SetUp() override {
    if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  }
};
TEST_P(SimulatedSuiteOnTwo, GivesTheNumbersOfTheCpu) { expect_the_numbers_of_two_cpu_ranks(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Sharded, SimulatedSuiteOnTwo, testing::ValuesIn(sharded()), name_of);

// ---- text, conversations, and the other verbs

// A tokenizer that knows bytes, the special tokens of ChatML and two words.
const std::string kWordsTokenizer = "[tokenizer]\nplugin = \"words\"\npath = \"tokenizer\"\n";
const Words kChats = {"model.config.vocab_size=264",
                      "train.task=sft",
                      "train.seq_len=64",
                      "train.global_batch_size=4",
                      "data.template=chatml",
                      "data.train.0.path=chats.jsonl",
                      "data.train.0.format=messages",
                      "data.eval.0.path=chats.jsonl",
                      "data.eval.0.format=messages"};

void write_chats(const SimulatedRun& run) {
  fs::create_directory(run.folder() / "tokenizer");
  write_text(run.folder() / "tokenizer/words.txt", "assistant\nuser\n");
  std::string lines;
  for (const auto& [question, answer] : {std::pair("Hi", "Hello there!"),
                                         {"Who are you?", "A tiny model."},
                                         {"2+2?", "Four, I think."},
                                         {"Bye", "See you soon."}}) {
    const auto message = [](const char* role, const char* content) {
      return nlohmann::ordered_json({{"role", role}, {"content", content}});
    };
    lines += nlohmann::ordered_json({{"messages", {message("user", question), message("assistant", answer)}}}).dump();
    lines += "\n";
  }
  write_text(run.folder() / "chats.jsonl", lines);
}

TEST(SimulatedChats, TrainAsOnTheCpu) {
  for (const std::string& adapter : {std::string(), kLoraOfRank4, kFourBits}) {
    SCOPED_TRACE(adapter);
    const SimulatedRun run(kWordsTokenizer + adapter);
    write_chats(run);
    expect_close({"chats"}, run.train("cuda", kChats), run.train("cpu", kChats));
  }
}

TEST(SimulatedChats, TrainAsOnTheCpuOnTwoDevices) {
  if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  for (const std::string& adapter : {std::string(), kFourBits}) {
    SCOPED_TRACE(adapter);
    const SimulatedRun run(kWordsTokenizer + adapter + kFsdp2);
    write_chats(run);
    const Words words = joined(kChats, {"--nproc", "2"});
    expect_close({"chats of two ranks"}, run.train("cuda", joined(words, kOnNccl)), run.train("cpu", words));
  }
}

class SimulatedVerbs : public testing::Test {
 protected:
  SimulatedVerbs() : run_("[tokenizer]\nplugin = \"bytes\"\n") {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "the quick brown fox jumps over the lazy dog " + std::to_string(i) + ". ";
    write_text(run_.folder() / "text.txt", text);
    EXPECT_EQ(output("train", "cpu", {"checkpoint.every_steps=4"}).exit_code, 0);
  }
  // On the checkpoint of a run on the CPU.
  Outcome output(const std::string& verb, const std::string& device, const Words& words) const {
    const Words common = {"run.toml",
                          "model.config.vocab_size=272",
                          "data.train.0.path=text.txt",
                          "data.train.0.format=text",
                          "data.eval.0.path=text.txt",
                          "data.eval.0.format=text",
                          "run.output_dir=made",
                          "run.device=" + device};
    const Outcome outcome = run_.verb(verb, joined(common, words));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome;
  }
  static double loss_of(const Outcome& outcome) {
    const size_t at = outcome.output.find(" loss ");
    EXPECT_NE(at, std::string::npos) << outcome.output;
    return at == std::string::npos ? 0.0 : std::stod(outcome.output.substr(at + 6));
  }
  static std::string answer_of(const Outcome& outcome) {
    const size_t at = outcome.output.find("the quick");
    EXPECT_NE(at, std::string::npos) << outcome.output;
    return outcome.output.substr(std::min(at, outcome.output.size()));
  }

  SimulatedRun run_;
};

const Words kGreedy = {"--prompt", "the quick", "generate.max_new_tokens=21", "generate.temperature=0.0"},
            kDrawn = {"--prompt", "the quick", "generate.max_new_tokens=21", "generate.temperature=1.0"};

TEST_F(SimulatedVerbs, EvaluateAndGenerateAsOnTheCpu) {
  const double loss = loss_of(output("eval", "cpu", {}));
  EXPECT_NEAR(loss_of(output("eval", "cuda", {})), loss, kFp32 * loss);
  for (const Words& words : {kGreedy, kDrawn, joined(kGreedy, {"--no-cache"})})
    EXPECT_EQ(answer_of(output("generate", "cuda", words)), answer_of(output("generate", "cpu", words)));
}

TEST_F(SimulatedVerbs, EvaluateAndGenerateAsOnTheCpuOnTwoDevices) {
  if (!fs::exists(kNccl)) GTEST_SKIP() << "built without CUDA's headers";
  const double loss = loss_of(output("eval", "cpu", {}));
  const std::string answer = answer_of(output("generate", "cpu", kGreedy));
  for (const char* plugin : {"fsdp2", "tensor", "context", "pipeline"}) {
    SCOPED_TRACE(plugin);
    const Words two = joined(kOnNccl, {std::string("parallel=[{plugin=\"") + plugin + "\"}]", "--nproc", "2"});
    EXPECT_NEAR(loss_of(output("eval", "cuda", two)), loss, kFp32 * loss);
    EXPECT_EQ(answer_of(output("generate", "cuda", joined(kGreedy, two))), answer);
  }
}

// ---- what is refused on CUDA

struct Refusal {
  std::string name, message;
  Words overrides = {};
  std::string toml = {};
  friend void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
};

class SimulatedRefusals : public testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    , SimulatedRefusals,
    testing::Values(
        Refusal{"attention_by_interval", "interval (attention): runs only on the CPU", {"attention.plugin=interval"}},
        Refusal{"attention_by_naive", "naive (attention): runs only on the CPU", {"attention.plugin=naive"}},
        Refusal{"kernels_of_fused", "fused (embedding): runs only on the CPU", {"kernels.plugins=[\"fused\"]"}},
        Refusal{
            "kernels_of_reference", "reference (embedding): runs only on the CPU", {"kernels.plugins=[\"reference\"]"}},
        Refusal{"muon",
                "muon steps on the CPU only; use adamw, or offload the optimizer's states",
                {"optimizer.plugin=muon"}},
        Refusal{"capped_scores",
                "sdpa (attention): LibTorch's kernels do not cap scores (softcap)",
                {"model.plugin=gemma2", "model.config.attn_logit_softcapping=2.0"}},
        Refusal{"odd_heads",
                "sdpa (attention): head dims 6 and 6 are not multiples of 4, as LibTorch's CUDA kernels need",
                {"model.config.hidden_size=24"}},
        Refusal{"odd_heads_in_bf16",
                "sdpa (attention): head dims 12 and 12 are not multiples of 8, as LibTorch's CUDA kernels need",
                {"model.config.hidden_size=48", "precision.compute=bf16"}},
        Refusal{"dropout_of_an_adapter",
                "aten (dropout): draws the bits of dropout on the CPU only",
                {"adapter.dropout=0.1"},
                kLoraOfRank4}),
    [](const auto& row) { return row.param.name; });

TEST_P(SimulatedRefusals, NameTheReason) {
  const SimulatedRun run(GetParam().toml);
  const Outcome outcome = run.start("cuda", GetParam().overrides);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kPlugin)) << outcome.output;
  EXPECT_HAS(outcome.output, GetParam().message);
}

}  // namespace
}  // namespace chassis::test
