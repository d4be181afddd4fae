// A small run that learns four conversations by heart, so that tests know the answers of its model.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/process.hpp"

namespace chassis::test {

// The words of the user, each with its answer.
inline const std::vector<std::pair<std::string, std::string>> kTurns = {
    {"Hi", "Hello there!"}, {"Who are you?", "A tiny model."}, {"2+2?", "Four,\nI think."}, {"Bye", "See you soon."}};

// Its configuration: further tables, and further lines of [run] and of [model.config].
inline std::string memorized_run(const std::string& tables, const std::string& run = "",
                                 const std::string& model = "") {
  return "schema_version = 1\n[run]\n" + run + R"(output_dir = "out"
max_steps = 120
device = "cpu"
[model]
plugin = "llama"
[model.config]
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
intermediate_size = 128
vocab_size = 264
)" + model +
         R"([tokenizer]
plugin = "words"
path = "tokenizer"
[data]
cache_dir = "cache"
template = "chatml"
[[data.train]]
path = "chats.jsonl"
format = "messages"
[train]
task = "sft"
seq_len = 64
global_batch_size = 4
[optimizer]
plugin = "adamw"
lr = 5e-3
[schedule]
name = "linear"
[attention]
plugin = "sdpa"
[kernels]
plugins = ["aten"]
)" + tables;
}

inline nlohmann::ordered_json message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// Writes run.toml with this configuration, its tokenizer and its data.
inline void write_memorized_run(const ScratchDirectory& folder, const std::string& toml) {
  using Json = nlohmann::ordered_json;
  write_text(folder / "run.toml", toml);
  std::filesystem::create_directory(folder / "tokenizer");
  write_text(folder / "tokenizer/words.txt", "assistant\nuser\n");
  std::string chats;
  for (const auto& [user, assistant] : kTurns)
    chats += Json({{"messages", {message("user", user), message("assistant", assistant)}}}).dump() + "\n";
  write_text(folder / "chats.jsonl", chats);
}

}  // namespace chassis::test
