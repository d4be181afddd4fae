// Reads the files of a data set record by record, in two stages: cutting a file into rows, which is sequential, and
// parsing a row, which any thread may do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"
#include "host/data/document_reader.hpp"
#include "host/data/record.hpp"

namespace chassis {

// One row of a file: its bytes for parse(), and its line. For binary files `bytes` are little-endian i32 ids.
struct RawRow {
  std::string bytes;
  uint64_t line = 0;  // from 1
};

// Cuts one file into rows. Used by one thread.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // False at the end. Blank lines are skipped and counted.
  virtual bool next(RawRow& row) = 0;
  // Of the file as it lies on disk, compressed or not.
  virtual uint64_t num_bytes_read() const = 0;
  const ReadNotes& notes() const { return notes_; }

 protected:
  ReadNotes notes_;
};

// Parses the rows of one set. One object per thread.
class RowParser {
 public:
  virtual ~RowParser() = default;
  // Throws a config error at the file and line of the row. Columns that the format does not use are counted in notes().
  virtual Record parse(const RawRow& row, const std::string& file) = 0;
  const ReadNotes& notes() const { return notes_; }

 protected:
  ReadNotes notes_;
};

// By the name of the file (.jsonl, .json, .csv, .txt, .bin, .parquet; text files also with .gz or .zst behind).
std::unique_ptr<RowReader> open_rows(const std::string& path, const DataSetConfig& config);
std::unique_ptr<RowParser> make_row_parser(const DataSetConfig& config, int64_t vocab_size);

}  // namespace chassis
