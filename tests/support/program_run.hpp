// A short run of the program: its configuration and its training text in a scratch folder.
#pragma once

#include <gtest/gtest.h>

#include <sstream>

#include "host/base/json.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/process.hpp"

namespace chassis::test {

class ProgramRun : public testing::Test {
 protected:
  using Words = std::vector<std::string>;

  ProgramRun() {
    write_text(scratch_ / "run.toml", R"(schema_version = 1
[run]
output_dir = "out"
max_steps = 6
[model]
plugin = "llama"
config = { hidden_size = 16, num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 32, vocab_size = 259 }
[tokenizer]
plugin = "bytes"
[[data.train]]
path = "corpus.txt"
[data]
cache_dir = "cache"
[train]
seq_len = 16
micro_batch_size = 2
global_batch_size = 4
[attention]
plugin = "naive"
[kernels]
plugins = ["reference"]
[optimizer]
plugin = "adamw"
lr = 1e-2
)");
    std::string corpus;
    for (int i = 0; i < 400; ++i) corpus += "line " + std::to_string(i * 37 % 101) + " of a small corpus\n";
    write_text(scratch_ / "corpus.txt", corpus);
  }

  static std::string program() { return CHASSIS_TEST_BINARY_DIR "/bin/chassis"; }
  static Words command(const Words& overrides) {
    Words words = {program(), "train", "run.toml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }
  Outcome train(const Words& overrides = {}) { return run_process(command(overrides), scratch_.path()); }
  // Through a shell, in the folder of the run; $CHASSIS is the program.
  Outcome shell(const std::string& line) {
    return run_process({"/bin/sh", "-c", line}, scratch_.path(), {{"CHASSIS", program()}});
  }

  std::vector<Json> metrics(const std::string& out) {
    std::vector<Json> lines;
    std::istringstream text(text_of_file(scratch_ / (out + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // The losses of all steps, which must be numbered from 1.
  std::vector<double> losses(const std::string& out) {
    std::vector<double> values;
    for (const Json& line : metrics(out)) {
      EXPECT_EQ(line["step"].get<size_t>(), values.size() + 1);
      values.push_back(line["loss"].get<double>());
    }
    return values;
  }
  std::string model(const std::string& out) { return text_of_file(scratch_ / (out + "/final/model.safetensors")); }
  void expect_same_run(const std::string& a, const std::string& b) {
    EXPECT_EQ(losses(a), losses(b));
    EXPECT_FALSE(model(a).empty());
    EXPECT_TRUE(model(a) == model(b)) << "the models differ";
  }

  ScratchDirectory scratch_;
};

}  // namespace chassis::test
