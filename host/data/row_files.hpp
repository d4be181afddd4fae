// Data files whose readers are not part of this folder: plugins of kind "rows", which the session offers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/row_reader.hpp"

namespace chassis {

// The keys of rows that a set reads; empty: all.
using UsedColumns = std::vector<std::string>;
UsedColumns used_columns(const DataSetConfig& config);

class RowFiles {
 public:
  virtual ~RowFiles() = default;
  // Whether a reader is installed for files of this name.
  virtual bool reads(std::string_view path) const = 0;
  // The endings of such names: ".parquet".
  virtual std::vector<std::string> endings() const = 0;
  // How the user can make an installed reader read this file, which it does not read now; empty if there is none.
  virtual std::string hint_of_unused(std::string_view) const { return ""; }
  // [control] Loads the reader of the file, and returns what identifies it and its version. Call it before open() with
  // the same columns.
  virtual std::string prepare(const std::string& path, const UsedColumns& columns) = 0;
  // Reads rows as JSON objects, whose "line" is the number of the row. Columns that are not asked for may be null.
  // Throws config errors, which name the file.
  virtual std::unique_ptr<RowReader> open(const std::string& path, const UsedColumns& columns) const = 0;
};

}  // namespace chassis
