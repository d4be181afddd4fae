// Reads a data set document by document: files of text that are tokenised here, or of ids that are used as they are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// A masked label, as everywhere in PyTorch.
constexpr int32_t kIgnoreLabel = -100;

struct Document {
  std::vector<int32_t> ids;
  // Empty: every token is trained. Otherwise one per id and not shifted: labels[t] belongs to ids[t].
  std::vector<int32_t> labels;
  uint64_t line = 0;  // where it starts, from 1
};

// What a reader passed over, for counted lines in the summary.
struct ReadNotes {
  uint64_t num_empty_documents = 0;
  std::map<std::string, uint64_t> unused_columns;  // name → rows; of at most 32 names
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False at the end. Documents without a token are passed over and counted; blank lines are no documents.
  virtual bool next(Document& document) = 0;
  virtual uint64_t num_bytes_read() const = 0;
  const ReadNotes& notes() const { return notes_; }

 protected:
  ReadNotes notes_;
};

// Entries of a folder that are no data, counted by what they are: ".md", "subfolder" …
using LeftOut = std::map<std::string, uint64_t>;
// ".csv 1, .md 2, subfolder 1"; shortened where there are many.
std::string to_text(const LeftOut& left_out);

// The files of a set; a config error if there is none, or if one is named like data and leads nowhere.
std::vector<std::string> data_files(const DataSetConfig& config, LeftOut* left_out = nullptr);

// Reads one of them. Ids must be below vocab_size; 0: any. `tokenizer` is needed for text.
std::unique_ptr<DocumentReader> open_documents(const std::string& path, const DataSetConfig& config,
                                               const Tokenizer* tokenizer, int64_t vocab_size);

// An error about the set as a whole, at its place in the configuration.
Error data_set_error(const DataSetConfig& config, std::string message);

}  // namespace chassis
