// Turns the files of a set into documents on several threads: one cuts files into rows, several make documents from the
// rows, and the caller receives them in the order of the rows. Results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/data/document.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {

// Makes documents from rows; each thread has its own worker.
class RowWorker {
 public:
  virtual ~RowWorker() = default;

  enum class Made {
    kDocument,
    kNothing,  // the row has no document here, which take_notes() may count
    kDropped,  // it cannot be used; `reason` says why
  };
  // Throws a config error at the file and line of a row that is invalid.
  virtual Made make(const RawRow& row, const std::string& file, Document& document, std::string& reason) = 0;
  // Returns the counts of what was skipped since the last call.
  virtual ReadNotes take_notes() = 0;
};

struct DroppedRow {
  uint64_t line = 0;
  std::string reason;
};

// The documents of consecutive rows of one file.
struct DocumentChunk {
  size_t file = 0;
  std::vector<Document> documents;
  std::vector<DroppedRow> dropped;
  ReadNotes notes;
  uint64_t num_rows = 0;
  // The sum over the rows of a hash of their bytes and lines: the sum over a file identifies its content.
  uint64_t content_hash = 0;
  uint64_t num_bytes_read = 0;  // bytes on disk, over all files so far
};

struct PipelineOptions {
  std::function<std::unique_ptr<RowReader>(const std::string& path)> open;
  std::function<std::unique_ptr<RowWorker>()> make_worker;
  int num_workers = 1;
  std::function<void()> poll = {};  // called at least every few tens of milliseconds; may throw
};

// Calls `take` for every chunk, in order. If several rows are invalid, the error of the first one is thrown, after the
// documents before it were taken. `take` and `poll` run on the calling thread; if they throw, the other threads end.
// The rows in memory are bounded by a number of bytes, unless a single row exceeds it.
void run_document_pipeline(const std::vector<std::string>& files, const PipelineOptions& options,
                           const std::function<void(DocumentChunk&&)>& take);

}  // namespace chassis
