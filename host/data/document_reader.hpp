// Reads a data set document by document: files of text, which are tokenised here, or files of token ids.
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

// A masked label; the same value as in PyTorch.
constexpr int32_t kIgnoreLabel = -100;

struct Document {
  std::vector<int32_t> ids;
  // Empty: every token is trained. Otherwise one per id and not shifted: labels[t] belongs to ids[t].
  std::vector<int32_t> labels;
  uint64_t line = 0;  // its first line, from 1
};

// Counts of what a reader skipped, for the counted warnings in the summary.
struct ReadNotes {
  uint64_t num_empty_documents = 0;
  uint64_t num_blank_lines = 0;                    // of .txt files, without those that end a paragraph
  std::map<std::string, uint64_t> unused_columns;  // name → rows; of at most 32 names
  std::map<std::string, uint64_t> changes;         // what was changed or masked in documents → how often

  void add(const ReadNotes& more);
};

class DocumentReader {
 public:
  virtual ~DocumentReader() = default;
  // False at the end. Skips and counts documents without tokens. Blank lines are not documents.
  virtual bool next(Document& document) = 0;
  virtual uint64_t num_bytes_read() const = 0;
  const ReadNotes& notes() const { return notes_; }

 protected:
  ReadNotes notes_;
};

// Entries of a folder that are not data, counted by their type: ".md", "subfolder" …
using SkippedEntries = std::map<std::string, uint64_t>;
// ".csv 1, .md 2, subfolder 1"; shortened if there are many.
std::string to_text(const SkippedEntries& skipped);

// The files of a set. Throws a config error if there are none, or if a data file is a broken link.
std::vector<std::string> data_files(const DataSetConfig& config, SkippedEntries* skipped = nullptr);

// Opens one of the files. Ids must be below vocab_size; 0: all are accepted. Text needs a tokenizer.
std::unique_ptr<DocumentReader> open_documents(const std::string& path, const DataSetConfig& config,
                                               const Tokenizer* tokenizer, int64_t vocab_size);

// A config error about the set as a whole, at its position in the configuration.
Error data_set_error(const DataSetConfig& config, std::string message);

}  // namespace chassis
