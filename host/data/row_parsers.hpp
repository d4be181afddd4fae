// The parsers behind make_row_parser(), one for each format.
#pragma once

#include <memory>
#include <string>

#include "host/data/json_row.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {

// Parses the JSON of a row; a subclass makes the record.
class JsonRowParser : public RowParser {
 public:
  Record parse(const RawRow& row, const std::string& file) final;

 protected:
  explicit JsonRowParser(const DataSetConfig& config);
  virtual Record read(const RowFields& row) = 0;
  // Reads a row of a text file; a broken invariant unless the format reads such files.
  virtual Record read_text(const RawRow& row);
  virtual Record read_tokens(const RawRow& row, const RowPlace& place);

  // Throws if the key is missing or null.
  JsonElement required(const RowFields& row, std::string_view name) const;
  std::string_view required_string(const RowFields& row, std::string_view name) const;

 private:
  DataFormat format_;
  KeyNames columns_;
  simdjson::dom::parser parser_;  // reuses its memory
};

// The instruction, followed by a line with the input if there is one.
std::string instruction_text(std::string_view instruction, std::string_view input);

std::unique_ptr<RowParser> make_token_parser(const DataSetConfig& config, int64_t vocab_size);
std::unique_ptr<RowParser> make_preference_parser(const DataSetConfig& config);

}  // namespace chassis
