// Generation under every way to divide the model: the text of one process, without a key-value cache, and with the
// caches of several texts at once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

std::string toml_of(const std::string& model) {
  return R"(schema_version = 1
[run]
max_steps = 30
seed = 5
threads = 1
device = "cpu"
[model]
)" + model +
         R"([[data.train]]
path = "text.txt"
format = "text"
[data]
cache_dir = "cache"
[tokenizer]
plugin = "bytes"
[train]
seq_len = 32
global_batch_size = 8
micro_batch_size = 8
[optimizer]
plugin = "adamw"
lr = 4e-3
[precision]
compute = "fp32"
[export]
when = "never"
[generate]
max_new_tokens = 21
temperature = 0.0
)";
}

const char* const kLlama = R"(plugin = "llama"
[model.config]
vocab_size = 272
hidden_size = 48
intermediate_size = 96
num_hidden_layers = 3
num_attention_heads = 6
num_key_value_heads = 2
initializer_range = 0.1
tie_word_embeddings = true
)";
// On two ranks, too, a latent and the rotated part have less than a quarter of the numbers of keys and values.
const char* const kLatents = R"(plugin = "deepseek_v2"
[model.config]
vocab_size = 272
hidden_size = 48
intermediate_size = 96
num_hidden_layers = 3
num_attention_heads = 6
q_lora_rank = 16
kv_lora_rank = 12
qk_nope_head_dim = 12
qk_rope_head_dim = 4
v_head_dim = 12
initializer_range = 0.1
n_routed_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 32
n_shared_experts = 1
first_k_dense_replace = 2
)";

struct Row {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
};

// Returns the text of one process.
std::string expect_the_text_of_one_process(const std::string& model, const std::vector<Row>& rows) {
  const ScratchDirectory folder;
  write_text(folder / "run.toml", toml_of(model));
  std::string text;
  for (int i = 0; i < 60; ++i) text += "the quick brown fox jumps over the lazy dog. ";
  write_text(folder / "text.txt", text);
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), CHASSIS_PROGRAM);
    words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    const Outcome outcome = run_process(words, folder.path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  run({"train", "run.toml"});
  // The last line, without what is logged before it.
  const auto generated = [&](const Row& row, bool cache) {
    std::vector<std::string> words = {"generate", "run.toml", "--prompt", "the quick"};
    words.insert(words.end(), row.overrides.begin(), row.overrides.end());
    if (row.ranks > 1) words.insert(words.end(), {"--nproc", std::to_string(row.ranks)});
    if (!cache) words.emplace_back("--no-cache");
    const std::string output = run(words);
    const size_t at = output.find("the quick");
    return at == std::string::npos ? output : output.substr(at, std::string("the quick").size() + 21);
  };
  write_text(folder / "prompts.jsonl",
             "{\"prompt\":\"the quick\"}\n{\"prompt\":\"dog\"}\n"
             "{\"prompt\":\"a fox jumps over\"}\n{\"prompt\":\"q\"}\n");
  // The answers to a file of prompts.
  const auto answered = [&](const Row& row, const std::string& batch_size) {
    const std::string out = std::string(row.name) + batch_size + ".jsonl";
    std::vector<std::string> words = {
        "generate", "run.toml", "--prompts", "prompts.jsonl", "--out", out, "generate.batch_size=" + batch_size};
    words.insert(words.end(), row.overrides.begin(), row.overrides.end());
    if (row.ranks > 1) words.insert(words.end(), {"--nproc", std::to_string(row.ranks)});
    run(words);
    return text_of_file(folder / out);
  };
  const Row alone{"alone", 1, {}};
  const std::string expected = generated(alone, true), answers = answered(alone, "1");
  EXPECT_EQ(generated(alone, false), expected);
  EXPECT_NE(answers.find(expected.substr(10)), std::string::npos) << answers;
  for (const Row& row : rows) {
    EXPECT_EQ(generated(row, false), expected) << row.name;
    EXPECT_EQ(answered(row, "3"), answers) << row.name;
  }
  return expected;
}

TEST(GenerationOnSeveralRanks, GivesTheTextOfOneProcess) {
  const std::string first = "parallel.0.plugin=", second = "parallel.1.plugin=";
  const std::string rings = "parallel.0.overlap=ring", positions = "parallel.0.sequence_parallel=true";
  const std::vector<Row> rows = {{"tensor", 2, {first + "tensor"}},
                                 {"tensor in rings", 2, {first + "tensor", positions, rings}},
                                 {"all_to_all", 2, {first + "context"}},
                                 {"gather", 2, {first + "context", "parallel.0.mode=gather"}},
                                 {"gather of three", 3, {first + "context", "parallel.0.mode=gather"}},
                                 {"ring", 2, {first + "context", "parallel.0.mode=ring"}},
                                 {"1f1b", 2, {first + "pipeline"}},
                                 {"zbv", 2, {first + "pipeline", "parallel.0.schedule=zbv"}},
                                 {"pipeline of three", 3, {first + "pipeline"}},
                                 {"tensor and pipeline", 4, {first + "tensor", second + "pipeline", "mesh.tp=2"}},
                                 {"pipeline and fsdp2", 4, {first + "pipeline", second + "fsdp2", "mesh.pp=2"}}};
  const std::string text = expect_the_text_of_one_process(kLlama, rows);
  EXPECT_NE(text.find("the quick brown"), std::string::npos) << text;
}

TEST(GenerationOnSeveralRanks, GivesTheTextOfOneProcessToAModelWithLatents) {
  const std::string first = "parallel.0.plugin=", positions = "parallel.0.sequence_parallel=true";
  std::vector<Row> rows = {{"tensor", 2, {first + "tensor"}},
                           {"tensor and positions", 2, {first + "tensor", positions}},
                           {"all_to_all", 2, {first + "context"}},
                           {"gather", 2, {first + "context", "parallel.0.mode=gather"}},
                           {"ring", 2, {first + "context", "parallel.0.mode=ring"}},
                           {"1f1b", 2, {first + "pipeline"}}};
  // One process caches keys and values, as is the default on the CPU; the others cache latents where they can.
  for (Row& row : rows) row.overrides.emplace_back("generate.full_cache=false");
  expect_the_text_of_one_process(kLatents, rows);
}

}  // namespace
}  // namespace chassis::test
