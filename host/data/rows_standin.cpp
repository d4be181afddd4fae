// Stands in for the readers of all formats: .jsonl with text or tokens, and .txt.
#include <fmt/format.h>
#include <simdjson.h>

#include <cstring>
#include <limits>
#include <utility>

#include "host/base/printable.hpp"
#include "host/base/units.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {
namespace {

class StandinRows final : public RowReader {
 public:
  StandinRows(const std::string& path, DocumentSplit split)
      : lines_(File::open_read(path), path),
        split_(path.ends_with(".jsonl") ? DocumentSplit::kLine : split),
        counts_blank_(path.ends_with(".txt")) {
    if (split_ == DocumentSplit::kFile && lines_.num_bytes() > kMaxDocumentBytes) {
      throw Error(ExitCode::kConfig, {path, 0, 0},
                  fmt::format("the file has {}, but a document has at most {}", bytes_text(lines_.num_bytes()),
                              bytes_text(kMaxDocumentBytes)))
          .hint("use documents = \"paragraph\" or \"line\"");
    }
  }
  bool next(RawRow& row) override {
    std::string_view line;
    if (!next_line(line, row.line)) return false;
    row.bytes.assign(line);
    if (split_ == DocumentSplit::kLine) return true;
    uint64_t num_blank = 0;
    while (lines_.next(line)) {
      if (is_blank(line)) {
        if (split_ == DocumentSplit::kParagraph) break;
        ++num_blank;
        continue;
      }
      row.bytes.append(num_blank + 1, '\n').append(line);
      num_blank = 0;
    }
    notes_.num_blank_lines += num_blank;
    return true;
  }
  uint64_t num_bytes_read() const override { return lines_.num_bytes_read(); }

 private:
  bool next_line(std::string_view& line, uint64_t& number) {
    while (lines_.next(line)) {
      number = lines_.line_number();
      if (!is_blank(line)) return true;
      if (counts_blank_ && split_ != DocumentSplit::kParagraph) ++notes_.num_blank_lines;
    }
    return false;
  }
  LineReader lines_;
  DocumentSplit split_;
  bool counts_blank_;
};

class StandinParser final : public RowParser {
 public:
  StandinParser(const DataSetConfig& config, int64_t vocab_size)
      : tokens_(config.format == DataFormat::kTokens),
        vocab_size_(vocab_size > 0 ? vocab_size : std::numeric_limits<int32_t>::max()) {}
  Record parse(const RawRow& row, const std::string& file) override {
    if (file.ends_with(".txt")) return TextRecord{row.bytes};
    const auto error = [&](std::string message) {
      return Error(ExitCode::kConfig, line_position(file, row.line), std::move(message));
    };
    simdjson::dom::element element;
    if (auto code = parser_.parse(row.bytes.data(), row.bytes.size()).get(element))
      throw error(fmt::format("not JSON: {}", simdjson::error_message(code)));
    simdjson::dom::object object;
    if (element.get(object)) throw error("the line is not a JSON object");
    TextRecord text;
    TokensRecord tokens;
    bool found = false;
    for (auto [key, value] : object) {
      std::string_view string;
      if (!tokens_ && key == "text") {
        if (value.get(string)) throw error("\"text\" is not a string");
        text.text = string;
        found = true;
      } else if (tokens_ && (key == "input_ids" || key == "labels")) {
        found |= key == "input_ids";
        auto& out = key == "labels" ? tokens.labels : tokens.ids;
        for (auto item : value.get_array()) {
          const int64_t id = item.get_int64();
          if (!(key == "labels" && id == -100) && (id < 0 || id >= vocab_size_))
            throw error(
                fmt::format("{}[{}] is {}, the vocabulary has {} ids", std::string(key), out.size(), id, vocab_size_));
          out.push_back(static_cast<int32_t>(id));
        }
      } else {
        ++notes_.unused_columns[printable(key)];
      }
    }
    if (!found) throw error(fmt::format("key \"{}\" is missing", tokens_ ? "input_ids" : "text"));
    if (tokens_) return tokens;
    return text;
  }

 private:
  bool tokens_;
  int64_t vocab_size_;
  simdjson::dom::parser parser_;
};

}  // namespace

std::unique_ptr<RowReader> open_rows(const std::string& path, const DataSetConfig& config) {
  return std::make_unique<StandinRows>(path, config.documents);
}

std::unique_ptr<RowParser> make_row_parser(const DataSetConfig& config, int64_t vocab_size) {
  return std::make_unique<StandinParser>(config, vocab_size);
}

}  // namespace chassis
