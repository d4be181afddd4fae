// Generation under every way to divide the model: the text of one process, without a key-value cache, and with the
// caches of several texts at once.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/process.hpp"

namespace chassis::test {
namespace {

const char* const kToml = R"(schema_version = 1
[run]
max_steps = 30
seed = 5
threads = 1
device = "cpu"
[model]
plugin = "llama"
config = { vocab_size = 272, hidden_size = 48, intermediate_size = 96, num_hidden_layers = 3, num_attention_heads = 6, num_key_value_heads = 2, initializer_range = 0.1, tie_word_embeddings = true }
[[data.train]]
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

struct Row {
  const char* name;
  int ranks;
  std::vector<std::string> overrides;
};

TEST(GenerationOnSeveralRanks, GivesTheTextOfOneProcess) {
  const ScratchDirectory folder;
  write_text(folder / "run.toml", kToml);
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
  EXPECT_NE(expected.find("the quick brown"), std::string::npos) << expected;
  EXPECT_EQ(generated(alone, false), expected);
  EXPECT_NE(answers.find(expected.substr(10)), std::string::npos) << answers;
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
  for (const Row& row : rows) {
    EXPECT_EQ(generated(row, false), expected) << row.name;
    EXPECT_EQ(answered(row, "3"), answers) << row.name;
  }
}

}  // namespace
}  // namespace chassis::test
