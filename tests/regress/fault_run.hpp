// The small run that tests of faults start as processes: a part of its configuration, and its data.
#pragma once

#include <string>

#include "tests/support/process.hpp"

namespace chassis::test {

inline const std::string kFaultRun = R"([model]
plugin = "llama"
config = { vocab_size = 101, hidden_size = 32, intermediate_size = 56, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2 }
[[data.train]]
path = "tokens.jsonl"
format = "tokens"
[data]
cache_dir = "cache"
[train]
seq_len = 16
global_batch_size = 12
[optimizer]
plugin = "adamw"
lr = 2e-3
)";

// The data of kFaultRun: 40 rows of 20 ids below `vocab_size`.
inline void write_tokens(const std::string& path, int vocab_size) {
  std::string rows;
  for (int row = 0; row < 40; ++row) {
    rows += "{\"input_ids\":[";
    for (int i = 0; i < 20; ++i) rows += (i ? "," : "") + std::to_string((row * 31 + i * 7) % vocab_size);
    rows += "]}\n";
  }
  write_text(path, rows);
}

}  // namespace chassis::test
