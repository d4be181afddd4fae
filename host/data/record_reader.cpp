// Chooses the reader of a file by its name.
#include "host/data/record_reader.hpp"

#include <iterator>

#include "host/data/data_files.hpp"
#include "host/data/file_type.hpp"
#include "host/data/row_files.hpp"
#include "host/data/row_names.hpp"
#include "host/data/row_readers.hpp"

namespace chassis {

UsedColumns used_columns(const DataSetConfig& config) {
  UsedColumns columns;
  if (config.all_columns) return columns;
  for (const auto& [name, key] : row_keys(config.format, config.columns)) columns.push_back(key);
  if (!config.has_targets) columns.insert(columns.end(), std::begin(kAnswersOfPair), std::end(kAnswersOfPair));
  return columns;
}

std::unique_ptr<RowReader> open_rows(const std::string& path, const DataSetConfig& config) {
  try {
    require_readable(config, path);
  } catch (const Error& error) {
    throw data_set_error(config, path + ": " + error.message()).hint(error.hint_text());
  }
  switch (file_type(path, config.row_files)) {
    case FileType::kJsonLines:
      return open_line_rows(path);
    case FileType::kJsonArray:
      return open_array_rows(path);
    case FileType::kPlainText:
      return open_text_rows(path, config.documents);
    case FileType::kCsv:
      return open_csv_rows(path);
    case FileType::kTokens:
      return open_token_rows(path);
    case FileType::kRows:
      return config.row_files->open(path, used_columns(config));
    case FileType::kUnknown:
      break;
  }
  throw internal_error("a type of file without a reader");
}

}  // namespace chassis
