// Reads .jsonl files, and .txt files, in which a document is a line, a paragraph between blank lines, or the file.
#include "host/data/line_reader.hpp"
#include "host/data/row_readers.hpp"

namespace chassis {
namespace {

class LineRows : public RowReader {
 public:
  LineRows(const std::string& path, RowKind kind) : lines_(open_bytes(path)), kind_(kind) {}

  bool next(RawRow& row) override {
    for (std::string_view line; lines_.next(line); ++notes_.num_blank_lines) {
      if (lines_.had_byte_order_mark()) note_byte_order_mark();
      if (is_blank(line)) continue;
      row.kind = kind_;
      row.line = lines_.line_number();
      row.bytes.assign(line);
      if (kind_ == RowKind::kText && line.find('\r') != std::string_view::npos)
        ++notes_.changes["lines have carriage returns (CR) inside, which do not end documents"];
      return true;
    }
    return false;
  }

  uint64_t num_bytes_read() const override { return lines_.num_bytes_read(); }
  void set_poll(std::function<void()> poll) override { lines_.set_poll(std::move(poll)); }

 protected:
  LineReader lines_;

 private:
  RowKind kind_;
};

// Blank lines around a block are not part of it; a blank line inside it ends a paragraph.
class BlockRows final : public LineRows {
 public:
  BlockRows(const std::string& path, DocumentSplit split) : LineRows(path, RowKind::kText), split_(split) {}

  bool next(RawRow& row) override {
    const bool paragraphs = split_ == DocumentSplit::kParagraph;
    const bool found = LineRows::next(row);
    if (paragraphs) notes_.num_blank_lines = 0;
    if (!found) return false;
    uint64_t num_blank = 0;
    for (std::string_view line; lines_.next(line);) {
      if (is_blank(line)) {
        if (paragraphs) break;
        ++num_blank;
        continue;
      }
      row.bytes.append(num_blank + 1, '\n').append(line);
      num_blank = 0;
      if (row.bytes.size() > kMaxDocumentBytes) {
        throw too_long_error(line_position(lines_.path(), row.line), paragraphs ? "paragraph" : "file")
            .hint(paragraphs ? "use documents = \"line\"" : "use documents = \"paragraph\" or \"line\"");
      }
    }
    notes_.num_blank_lines += num_blank;
    return true;
  }

 private:
  DocumentSplit split_;
};

}  // namespace

std::unique_ptr<RowReader> open_line_rows(const std::string& path) {
  return std::make_unique<LineRows>(path, RowKind::kJson);
}

std::unique_ptr<RowReader> open_text_rows(const std::string& path, DocumentSplit split) {
  if (split == DocumentSplit::kLine) return std::make_unique<LineRows>(path, RowKind::kText);
  return std::make_unique<BlockRows>(path, split);
}

}  // namespace chassis
