// The type of a data file, by its name.
#pragma once

#include <string>
#include <string_view>

#include "host/data/data_config.hpp"

namespace chassis {

enum class FileType { kUnknown, kJsonLines, kJsonArray, kPlainText, kCsv, kTokens, kRows };

// ".jsonl", ".json", ".txt" and ".csv", each also followed by ".gz" or ".zst"; ".bin". kRows: ".parquet", and names
// that `row_files` reads.
FileType file_type(std::string_view path, const RowFiles* row_files = nullptr);
// Whether sets of the format may have files of the type.
bool can_read(DataFormat format, FileType type);
// ".jsonl, .json or .bin"
std::string readable_names(const DataSetConfig& config);
// Throws a config error if the set cannot have this file, or if its reader is not installed. The error says what to do.
void require_readable(const DataSetConfig& config, const std::string& path);

}  // namespace chassis
