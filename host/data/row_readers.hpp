// The readers behind open_rows(), one for each type of file.
#pragma once

#include <memory>
#include <string>

#include "host/data/data_config.hpp"
#include "host/data/row_reader.hpp"

namespace chassis {

// .jsonl: each line is a row.
std::unique_ptr<RowReader> open_line_rows(const std::string& path);
// .txt: a line, a paragraph between blank lines, or the file is a row.
std::unique_ptr<RowReader> open_text_rows(const std::string& path, DocumentSplit split);
// .json: the elements of an array, read one after the other.
std::unique_ptr<RowReader> open_array_rows(const std::string& path);
// .csv (RFC 4180): rows as JSON objects whose keys are in the first row, and whose values are strings.
std::unique_ptr<RowReader> open_csv_rows(const std::string& path);
// .bin: documents of token ids, in Megatron's format if there is an .idx file beside it, otherwise in llm.c's. A row's
// "line" is the number of the document.
std::unique_ptr<RowReader> open_token_rows(const std::string& path);
std::unique_ptr<RowReader> open_megatron_rows(const std::string& path, const std::string& index_path);
std::unique_ptr<RowReader> open_shard_rows(const std::string& path);

}  // namespace chassis
