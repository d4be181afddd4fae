// The configuration that `chassis init` writes: what it found in the model's directory and in the data, as TOML with
// comments that say why.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/command/init/init_method.hpp"
#include "host/command/init/label_scan.hpp"
#include "host/data/data_config.hpp"

namespace chassis {

// The way in which the rows of a data file are read.
struct RowFormat {
  DataFormat format = DataFormat::kText;
  std::map<std::string, std::string> columns;  // as in [[data.train]]
};
struct FoundFormat : RowFormat {
  FoundFormat(DataFormat form, std::map<std::string, std::string> names, std::string reason)
      : RowFormat{form, std::move(names)}, why(std::move(reason)) {}
  FoundFormat() = default;
  std::string why;                  // "its rows have the keys messages, id"
  bool has_logps = false;           // of rollouts: answers have the log-probabilities of the policy that wrote them
  std::optional<RowFormat> better;  // for pairs: reads only the better answers; for labelled answers: all of them
};
// Finds it from the names of the files and the keys of the first rows. Throws a config error if they fit no format.
FoundFormat find_format(const std::string& path, RowFiles* row_files = nullptr);

struct InitFacts {
  std::string model = {}, data = {}, output_dir = {}, name = {};
  Task task = Task::kPretrain;
  std::string method = {};                // "full", "lora" or "qlora"
  const InitMethod* objective = nullptr;  // NULL: the cross entropy of tokens
  LabelScan labels = {};                  // for classify
  FoundFormat format = {};
  bool split_pairs = false;                          // pairs are read as labelled answers
  std::string architecture = {}, stored_dtype = {};  // the model's; empty: unknown
  bool is_quantized = false;                         // the model's weights are in 4 bits already
  int64_t max_positions = 0;                         // 0: unknown
  int64_t narrowest = 0;                             // width of the keys of all kv heads; 0: unknown
  std::set<std::string> joined = {};                 // ends of modules that hold several linears: "qkv_proj"
  uint64_t num_files = 0;                            // data files
  uint64_t num_rows = 0, longest = 0;                // rows that were looked at, and tokens of the longest
  uint64_t num_tokens = 0;                           // in all rows that were looked at
  bool is_sample = false;                            // there are more rows
  uint64_t num_too_long = 0;                         // rows with more tokens than seq_len_of()
  std::string overflow = {};                         // the treatment of those rows; empty: the default
  std::string data_template = {};                    // empty: the default
  std::string why_template = {};
};

// Tokens per row, at most the positions of the model for each of its sequences; a labelled answer has a second one, its
// mismatch. A power of two that holds the longest row, between 256 and 4096 for each of its sequences; for pretraining
// 1024, or less if the whole text is short.
int64_t seq_len_of(const InitFacts& facts);
// Chosen so that a small file makes several steps, and the warm-up is a small part of them.
struct InitSteps {
  int64_t rows_of_step = 8, warmup_steps = 10;
  int64_t num_steps = 0;  // approximate; more if there are more rows; 0: unknown
};
InitSteps steps_of(const InitFacts& facts);
// True if rows are conversations that a chat template writes.
bool has_template(const InitFacts& facts);
std::string init_toml(const InitFacts& facts);

}  // namespace chassis
