// Reads .txt files: a document is a line, a paragraph between blank lines, or the file.
#include "host/data/text_reader.hpp"

#include <fmt/format.h>

#include <utility>

#include "host/base/units.hpp"
#include "host/data/line_reader.hpp"

namespace chassis {
namespace {

class PlainText final : public DocumentReader {
 public:
  PlainText(const std::string& path, DocumentSplit split, TextEncoder encoder)
      : lines_(File::open_read(path), path), split_(split), encoder_(std::move(encoder)) {
    if (split_ == DocumentSplit::kFile && lines_.num_bytes() > kMaxDocumentBytes) {
      throw Error(ExitCode::kConfig, {path, 0, 0},
                  fmt::format("the file has {}, but a document has at most {}", bytes_text(lines_.num_bytes()),
                              bytes_text(kMaxDocumentBytes)))
          .hint("use documents = \"paragraph\" or \"line\"");
    }
  }

  bool next(Document& document) override {
    uint64_t first_line = 0;
    while (split_ == DocumentSplit::kLine ? next_line(first_line) : next_block(first_line)) {
      document.line = first_line;
      encoder_.encode(text_, line_position(lines_.name(), first_line), document);
      if (!document.ids.empty()) return true;
      ++notes_.num_empty_documents;
    }
    return false;
  }

  uint64_t num_bytes_read() const override { return lines_.num_bytes_read(); }

 private:
  bool next_line(uint64_t& first_line) {
    while (lines_.next(text_)) {
      first_line = lines_.line_number();
      if (!is_blank(text_)) return true;
      if (split_ != DocumentSplit::kParagraph) ++notes_.num_blank_lines;
    }
    return false;
  }

  // Blank lines around a block are not part of it; a blank line inside it ends a paragraph.
  bool next_block(uint64_t& first_line) {
    if (!next_line(first_line)) return false;
    block_.assign(text_);
    uint64_t num_blank = 0;
    for (std::string_view line; lines_.next(line);) {
      if (is_blank(line)) {
        if (split_ == DocumentSplit::kParagraph) break;
        ++num_blank;
        continue;
      }
      block_.append(num_blank + 1, '\n').append(line);
      num_blank = 0;
      if (block_.size() > kMaxDocumentBytes) {
        throw Error(ExitCode::kConfig, line_position(lines_.name(), first_line),
                    fmt::format("the document is longer than {}", bytes_text(kMaxDocumentBytes)))
            .hint("use documents = \"line\"");
      }
    }
    notes_.num_blank_lines += num_blank;
    text_ = block_;
    return true;
  }

  LineReader lines_;
  DocumentSplit split_;
  TextEncoder encoder_;
  std::string_view text_;
  std::string block_;
};

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, int64_t vocab_size)
    : tokenizer_(&tokenizer), vocab_size_(vocab_size > 0 ? vocab_size : tokenizer.vocab_size()) {}

void TextEncoder::encode(std::string_view text, const SourcePosition& where, Document& document) const {
  std::vector<int32_t>& ids = document.ids;
  document.labels.clear();
  try {
    tokenizer_->encode(text, ids);
  } catch (const Error& error) {
    if (!error.where().file.empty()) throw;
    throw Error(error.code(), where, error.message()).hint(error.hint_text());
  }
  const int32_t bos = tokenizer_->bos_id(), eos = tokenizer_->eos_id();
  if (bos >= 0 && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  if (eos >= 0 && (ids.empty() || ids.back() != eos)) ids.push_back(eos);
  for (int32_t id : ids) {
    if (id >= 0 && id < vocab_size_) continue;
    throw Error(ExitCode::kConfig, where,
                fmt::format("the tokenizer gives id {}, the vocabulary has {} ids", id, vocab_size_))
        .hint("the tokenizer does not belong to this model, or vocab_size is too small");
  }
}

std::unique_ptr<DocumentReader> open_plain_text(const std::string& path, DocumentSplit split, TextEncoder encoder) {
  return std::make_unique<PlainText>(path, split, std::move(encoder));
}

}  // namespace chassis
