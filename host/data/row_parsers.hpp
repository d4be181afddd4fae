// The parsers behind make_row_parser(), one for each format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Appends [["question", "answer"], …]. In a .csv file it can only be an empty text.
void add_history(const RowPlace& place, const std::string& name, JsonElement history, std::vector<Message>& messages);

// A number from -1e30 to 1e30, or a text with one, as in a .csv file. nullopt for a blank text.
std::optional<double> finite_number(const RowPlace& place, const std::string& name, JsonElement value);
// Likewise, but not a text.
double plain_number(const RowPlace& place, const std::string& name, JsonElement value);

std::unique_ptr<RowParser> make_token_parser(const DataSetConfig& config, int64_t vocab_size);
std::unique_ptr<RowParser> make_preference_parser(const DataSetConfig& config);
std::unique_ptr<RowParser> make_labelled_parser(const DataSetConfig& config);
std::unique_ptr<RowParser> make_class_parser(const DataSetConfig& config);
std::unique_ptr<RowParser> make_rollouts_parser(const DataSetConfig& config);
std::unique_ptr<RowParser> make_distillation_parser(const DataSetConfig& config, int64_t vocab_size);

// Ids of the vocabulary, and their labels, from a row with "input_ids". vocab_size 0: every id is taken.
TokensRecord tokens_of(const RowFields& row, JsonElement input_ids, int64_t vocab_size);

}  // namespace chassis
