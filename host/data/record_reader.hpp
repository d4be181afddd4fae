// Reads the files of a data set record by record, in two stages: cutting a file into rows, which is sequential, and
// parsing a row, which any thread may do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"
#include "host/data/document.hpp"
#include "host/data/record.hpp"

namespace chassis {

// The content of the bytes of a row: a JSON object, a text as it is, or ids as little-endian i32.
enum class RowKind { kJson, kText, kTokens };

// One row of a file for parse().
struct RawRow {
  RowKind kind = RowKind::kJson;
  std::string bytes;
  uint64_t line = 0;      // its first line, from 1; in binary files, the number of the document or row
  bool is_table = false;  // for JSON: the keys are a table's columns, so that null may stand for an absent key
};

// Cuts one file into rows. Used by one thread.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // False at the end. Blank lines are skipped and counted.
  virtual bool next(RawRow& row) = 0;
  // Bytes of the file on disk, compressed or not.
  virtual uint64_t num_bytes_read() const = 0;
  // Called at least once for every block that is read; may throw to end a loop over a long file.
  virtual void set_poll(std::function<void()>) {}
  const ReadNotes& notes() const { return notes_; }

 protected:
  void note_byte_order_mark() { notes_.changes["byte order marks at the begin of files are skipped"] = 1; }

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

// Chooses the reader by the name of the file: .jsonl, .json, .csv, .txt, .bin; text files also followed by .gz or .zst;
// names that config.row_files reads, after data_files() has found the file.
std::unique_ptr<RowReader> open_rows(const std::string& path, const DataSetConfig& config);
std::unique_ptr<RowParser> make_row_parser(const DataSetConfig& config, int64_t vocab_size);

}  // namespace chassis
