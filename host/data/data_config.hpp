// What a user may say about data, as plain values; whoever reads the configuration fills them in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/batch.hpp"

namespace chassis {

// concat_split: documents one after another, rows without padding, a document that crosses a row goes on in the next.
// none: one document per row, padded.
enum class Packing { kConcatSplit, kNone };
// What happens to a document longer than seq_len if there is no packing.
enum class Overflow { kError, kTruncate, kDrop };
// How a .txt file is divided into documents.
enum class DocumentSplit { kLine, kParagraph, kFile };
enum class DataFormat { kText, kTokens };

// "concat_split", …; anything else is a config error that lists what there is.
Packing packing_from_text(std::string_view text);
Overflow overflow_from_text(std::string_view text);
DocumentSplit document_split_from_text(std::string_view text);
DataFormat data_format_from_text(std::string_view text);
std::string_view to_text(Packing packing);
std::string_view to_text(Overflow overflow);
std::string_view to_text(DocumentSplit split);
std::string_view to_text(DataFormat format);

struct DataSetConfig {
  // A .txt or .jsonl file, or a folder: all such files in it, in the order of their names.
  std::string path;
  DataFormat format = DataFormat::kText;
  DocumentSplit documents = DocumentSplit::kLine;
  // This set's share of the rows, relative to the other sets'. Either every set has one or none; without, sets are
  // mixed by their size, so that an epoch sees each document once.
  std::optional<double> weight;
  // Where the user wrote it, for messages: the key such as "data.train.0" and its place.
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
  // Of the model: ids must be below. 0: not known, anything goes.
  int64_t vocab_size = 0;
  // What is written into padding; never used to find it again.
  int32_t pad_id = 0;
  // Of a batch: those that the model takes.
  std::vector<std::string> fields = all_batch_fields();
  // Where the tokenised sets are kept.
  std::string cache_dir;
  // As PrepareOptions has it.
  bool first_on_machine = true;
  // Builds the next step on a thread while this one is trained. Changes no result.
  bool prefetch = true;
};

}  // namespace chassis
