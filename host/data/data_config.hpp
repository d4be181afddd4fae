// The user's options for data as plain values, filled in from the configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/batch.hpp"

namespace chassis {

// concat_split: documents are joined and split into rows without padding; a document may continue in the next row.
// none: one document per row, padded.
enum class Packing { kConcatSplit, kNone };
// Without packing, what happens to a document longer than seq_len.
enum class Overflow { kError, kTruncate, kDrop };
// How a .txt file is divided into documents.
enum class DocumentSplit { kLine, kParagraph, kFile };
enum class DataFormat { kText, kTokens };

// "concat_split", …; anything else is a config error that lists the valid names.
Packing packing_from_text(std::string_view text);
Overflow overflow_from_text(std::string_view text);
DocumentSplit document_split_from_text(std::string_view text);
DataFormat data_format_from_text(std::string_view text);
std::string_view to_text(Packing packing);
std::string_view to_text(Overflow overflow);
std::string_view to_text(DocumentSplit split);
std::string_view to_text(DataFormat format);

struct DataSetConfig {
  // A .txt or .jsonl file, or a folder, whose files of these types are read in the order of their names.
  std::string path;
  DataFormat format = DataFormat::kText;
  DocumentSplit documents = DocumentSplit::kLine;
  // This set's share of the rows, relative to the other sets. Either all sets have a weight or none has; without
  // weights, sets are mixed by their size, so that an epoch sees each document once.
  std::optional<double> weight;
  // For messages: the key, such as "data.train.0", and its position in the configuration.
  std::string key = "data";
  SourcePosition where;
};

struct DataConfig {
  std::vector<DataSetConfig> train;
  Packing packing = Packing::kConcatSplit;
  Overflow overflow = Overflow::kError;
  bool shuffle = true;
  uint64_t seed = 0;
  int64_t seq_len = 0;
  // The model's; ids must be below it. 0: unknown, all ids are accepted.
  int64_t vocab_size = 0;
  // Written to padding; never used to recognise padding.
  int32_t pad_id = 0;
  // The fields of a batch that the model takes.
  std::vector<std::string> fields = all_batch_fields();
  // The folder that keeps tokenised sets.
  std::string cache_dir;
  // As in PrepareOptions.
  bool first_on_machine = true;
  // Builds the next step on another thread while the current one is trained. Does not change results.
  bool prefetch = true;
};

}  // namespace chassis
