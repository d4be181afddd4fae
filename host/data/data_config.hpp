// The user's options for data as plain values, filled in from the configuration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/config/choices.hpp"
#include "host/data/batch.hpp"

namespace chassis {

struct SlotTemplate;
class RowFiles;

// How conversations become text, and which of their tokens are trained.
struct ChatConfig {
  // "auto": the tokenizer's own; the name of a slot template; or the path of a .toml or .jinja file.
  std::string template_name = "auto";
  std::shared_ptr<const SlotTemplate> slots;  // that slot template; NULL: the template is Jinja
  std::string template_text;                  // source of that .jinja file; empty: the tokenizer's own
  std::vector<std::string> fitting_slots;     // names of the slot templates whose tokens the tokenizer has
  std::string variables_json;                 // further variables of a Jinja template
  std::string date;                           // YYYY-MM-DD, for templates that show one
  std::string default_system;                 // put in front of conversations without a system message
  std::vector<std::string> roles_to_train = {"assistant"};
  bool train_on_prompt = false;  // trains every token
  bool last_turn_only = false;   // trains the last message of roles_to_train alone
  Reasoning reasoning = Reasoning::kTemplate;
  std::vector<int32_t> stop_ids;  // ids that may end a turn: generation_config's eos_token_id, and the tokenizer's
};

// "sharegpt", …; anything else is a config error that lists the valid names.
DataFormat data_format_from_text(std::string_view text);

struct DataSetConfig {
  // A file, a folder, whose data files are read in the order of their names, or a pattern such as "data/*.jsonl.gz".
  std::string path;
  DataFormat format = DataFormat::kText;
  DocumentSplit documents = DocumentSplit::kLine;
  // This set's share of the rows, relative to the other sets. Either all sets have a weight or none has; without
  // weights, sets are mixed by their size, so that an epoch sees each document once.
  std::optional<double> weight = {};
  // Other names of the keys of a row, and other words for roles: {"messages": "dialog"}, {"user": "human"}.
  std::map<std::string, std::string> columns = {}, tags = {};
  // Names of the classes, in the order of their indices; empty: labels are indices.
  std::vector<std::string> classes = {};
  bool all_columns = false;  // also reads those that the format does not use
  // Reads only the documents that a hash puts into this part: [begin, end) of [0, 1).
  double part_begin = 0, part_end = 1;
  RowFiles* row_files = nullptr;  // reads files of other types; NULL: nothing does. Outlives the set
  bool split_pairs = false;       // pairs are labelled answers: chosen ones are good, and rejected ones bad
  bool reads_margins = true;      // of pairs; otherwise they count as unused
  // False: rows of format "classification" are scored. They need no label, and one that is there is not read; a row
  // with the two answers of a pair is refused.
  bool has_targets = true;
  bool needs_answer = false;  // a "prompt" in rows of format "classification" needs its "completion"
  // For messages: the key, such as "data.train.0", and its position in the configuration.
  std::string key = "data";
  SourcePosition where = {};
};

struct DataConfig {
  std::vector<DataSetConfig> train;
  Packing packing = Packing::kConcatSplit;
  Overflow overflow = Overflow::kError;
  bool shuffle = true;
  uint64_t seed = 0;
  ChatConfig chat;
  bool supervised = false;  // train.task = "sft": conversations, with masks
  // Threads that prepare data; 0: one for each core that this process may use.
  int64_t num_threads = 0;
  // Rows that a template refuses, or does not show, are dropped; otherwise the first one is an error.
  bool skips_refused = false;
  // Above this fraction of dropped rows, preparing fails.
  double max_drop_ratio = 0.05;
  int64_t seq_len = 0;
  // The model's; ids must be below it. 0: unknown, all ids are accepted.
  int64_t vocab_size = 0;
  // Written to padding; never used to recognise padding.
  int32_t pad_id = 0;
  // Micro-batches are as long as their longest row, rounded up to a multiple of this (row_lengths.hpp); 0: all rows
  // have seq_len positions.
  int64_t length_multiple = 0;
  // The fields of a batch that the model takes.
  std::vector<std::string> fields = all_batch_fields();
  // The sizes of their dims other than B and T.
  NamedSizes dims = {};
  // The needs of the run's objective; nullopt: documents are not divided into sequences.
  std::optional<SequenceNeeds> sequences = {};
  // The folder that keeps tokenised sets.
  std::string cache_dir;
  // As in PrepareOptions.
  bool first_on_machine = true;
  // Builds the next step on another thread while the current one is trained. Does not change results.
  bool prefetch = true;
};

}  // namespace chassis
