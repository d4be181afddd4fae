// What a data file is, by its name.
#pragma once

#include <string>
#include <string_view>

#include "host/data/data_config.hpp"

namespace chassis {

enum class FileType { kUnknown, kJsonLines, kJsonArray, kPlainText, kCsv, kTokens, kParquet };

// ".jsonl", ".json", ".txt" and ".csv", each also with ".gz" or ".zst" behind; ".bin"; ".parquet".
FileType file_type(std::string_view path);
// Whether sets of the format may have files of the type.
bool can_read(DataFormat format, FileType type);
// ".jsonl, .json or .bin"
std::string readable_names(DataFormat format);
// Throws a config error if it cannot, with what to do about it.
void require_readable(DataFormat format, const std::string& path);

}  // namespace chassis
