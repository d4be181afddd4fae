// Reads the files of a data set record by record, in two stages: cutting a file into rows, which is sequential, and
// parsing a row, which any thread may do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/data_config.hpp"
#include "host/data/record.hpp"
#include "host/data/row_reader.hpp"

namespace chassis {

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
