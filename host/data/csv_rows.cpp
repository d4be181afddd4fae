// Reads .csv files (RFC 4180): commas, quotes doubled inside quotes, line breaks inside quotes.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "host/base/printable.hpp"
#include "host/data/json_text.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/row_readers.hpp"

namespace chassis {
namespace {

class CsvRows final : public RowReader {
 public:
  explicit CsvRows(const std::string& path) : lines_(open_bytes(path)) {
    if (!read_fields())
      throw Error(ExitCode::kConfig, {path, 0, 0}, "the file is empty; its first row names the columns");
    if (lines_.had_byte_order_mark()) note_byte_order_mark();
    columns_ = fields_;
    require_columns();
  }

  bool next(RawRow& row) override {
    if (!read_fields()) return false;
    if (fields_.size() != columns_.size()) {
      throw error(fmt::format("the row has {} fields, the first row names {} columns", fields_.size(), columns_.size()))
          .hint("a field with a comma, a quote or a line break must be in quotes");
    }
    row.kind = RowKind::kJson;
    row.line = first_line_;
    row.bytes = "{";
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (i > 0) row.bytes += ',';
      append_json_string(row.bytes, columns_[i]);
      row.bytes += ':';
      append_json_string(row.bytes, fields_[i]);
    }
    row.bytes += '}';
    return true;
  }

  uint64_t num_bytes_read() const override { return lines_.num_bytes_read(); }
  void set_poll(std::function<void()> poll) override { lines_.set_poll(std::move(poll)); }

 private:
  void require_columns() const {
    for (const std::string& column : columns_)
      if (column.find('\r') != std::string::npos)
        throw error("the first row has carriage returns (CR) inside: the lines of the file end in CR alone")
            .hint("convert the file, for example with tr '\\r' '\\n'");
    std::unordered_set<std::string_view> names;
    for (const std::string& column : columns_)
      if (!names.insert(column).second)
        throw error(fmt::format("the first row names column \"{}\" twice", printable(column)));
    if (columns_.size() == 1 && columns_[0].find_first_of(";\t") != std::string::npos)
      throw error("the columns are not separated by commas").hint("write the file again with commas");
  }

  // Reads one row, of one or more lines, into fields_. False at the end.
  bool read_fields() {
    std::string_view line;
    while (true) {
      if (!lines_.next_with_cr(line)) return false;
      if (!is_blank(line)) break;
      ++notes_.num_blank_lines;
    }
    first_line_ = lines_.line_number();
    fields_.clear();
    num_bytes_ = 0;
    size_t pos = 0;
    do {
      fields_.emplace_back();
      if (pos < line.size() && line[pos] == '"')
        read_quoted(line, pos);
      else
        read_plain(line, pos);
      num_bytes_ += fields_.back().size();
    } while (pos++ < line.size());  // skips the comma
    return true;
  }

  // Stops at the comma, or at the end of the line.
  void read_plain(std::string_view& line, size_t& pos) {
    const size_t end = std::min(line.find(',', pos), line.size());
    std::string_view field = line.substr(pos, end - pos);
    if (end == line.size() && field.ends_with('\r')) field.remove_suffix(1);
    if (const size_t quote = field.find('"'); quote != std::string_view::npos) {
      SourcePosition where = lines_.position();
      where.column = static_cast<int>(pos + quote + 1);
      throw Error(ExitCode::kConfig, where, "a quote inside a field that does not begin with one")
          .hint("put the field in quotes, and double those inside");
    }
    fields_.back() = field;
    pos = end;
  }

  void read_quoted(std::string_view& line, size_t& pos) {
    const SourcePosition begin = lines_.position();
    std::string& field = fields_.back();
    for (++pos; true;) {
      const size_t quote = line.find('"', pos);
      if (quote == std::string_view::npos) {
        append(field, line.substr(pos), begin);
        if (!lines_.next_with_cr(line)) throw Error(ExitCode::kConfig, begin, "a quote opens here and is never closed");
        field += '\n';
        pos = 0;
        continue;
      }
      append(field, line.substr(pos, quote - pos), begin);
      pos = quote + 1;
      if (pos == line.size() || line[pos] != '"') break;
      field += '"';
      ++pos;
    }
    if (line.substr(pos) == "\r") pos = line.size();
    if (pos < line.size() && line[pos] != ',') {
      SourcePosition where = lines_.position();
      where.column = static_cast<int>(pos + 1);
      throw Error(ExitCode::kConfig, where, "text after a closing quote").hint("double the quotes inside a field");
    }
  }

  void append(std::string& field, std::string_view text, const SourcePosition& begin) const {
    if (const uint64_t size = num_bytes_ + field.size() + text.size(); size > kMaxDocumentBytes)
      throw too_long_error(begin, "row", size).hint("is a closing quote missing?");
    field.append(text);
  }

  Error error(std::string message) const {
    return Error(ExitCode::kConfig, line_position(lines_.path(), first_line_), std::move(message));
  }

  LineReader lines_;
  std::vector<std::string> columns_, fields_;
  uint64_t first_line_ = 0;
  uint64_t num_bytes_ = 0;  // total of the fields
};

}  // namespace

std::unique_ptr<RowReader> open_csv_rows(const std::string& path) { return std::make_unique<CsvRows>(path); }

}  // namespace chassis
