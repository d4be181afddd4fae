// One parser and one encoder per thread. The parser begins anew with each chunk, so that what it notes does not depend
// on the number of threads.
#include "host/data/encode_worker.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <variant>

#include "host/data/line_reader.hpp"
#include "host/data/record_hash.hpp"
#include "host/data/text_reader.hpp"

namespace chassis {
namespace {

// Stands in for the encoder of all records.
class StandinEncoder {
 public:
  StandinEncoder(const DataSetConfig&, const DataConfig*, const Tokenizer* tokenizer, int64_t vocab_size) {
    if (tokenizer) text_.emplace(*tokenizer, vocab_size);
  }
  bool encode(const Record& record, const SourcePosition& where, Document& document) {
    if (const auto* tokens = std::get_if<TokensRecord>(&record)) {
      document.ids = tokens->ids;
      document.labels = tokens->labels;
    } else if (const auto* text = std::get_if<TextRecord>(&record)) {
      if (!text->text.empty()) text_->encode(text->text, where, document);
    } else {
      throw Error(ExitCode::kConfig, where, "this format cannot be read yet");
    }
    return true;
  }
  std::string fingerprint() const { return ""; }
  const std::string& drop_reason() const { return reason_; }

 private:
  std::optional<TextEncoder> text_;
  std::string reason_;
};

class EncodeWorker final : public RowWorker {
 public:
  EncodeWorker(const DataSetConfig& config, const DataConfig* data, const Tokenizer* tokenizer, int64_t vocab_size)
      : config_(config),
        vocab_size_(vocab_size),
        encoder_(config, data, tokenizer, vocab_size),
        parser_(make_row_parser(config, vocab_size)) {}

  Made make(const RawRow& row, const std::string& file, Document& document, std::string& reason) override {
    const Record record = parser_->parse(row, file);
    if (!is_in_part(record)) return Made::kNothing;
    if (!encoder_.encode(record, line_position(file, row.line), document)) {
      reason = encoder_.drop_reason();
      return Made::kDropped;
    }
    if (!document.ids.empty()) return Made::kDocument;
    ++num_empty_;
    return Made::kNothing;
  }

  ReadNotes take_notes() override {
    ReadNotes notes = parser_->notes();
    notes.num_empty_documents += std::exchange(num_empty_, 0);
    parser_ = make_row_parser(config_, vocab_size_);
    return notes;
  }

 private:
  bool is_in_part(const Record& record) const {
    if (config_.part_begin <= 0 && config_.part_end >= 1) return true;
    const double fraction = content_fraction(record);
    return fraction >= config_.part_begin && fraction < config_.part_end;
  }

  const DataSetConfig& config_;
  int64_t vocab_size_;
  StandinEncoder encoder_;
  std::unique_ptr<RowParser> parser_;
  uint64_t num_empty_ = 0;
};

}  // namespace

std::unique_ptr<RowWorker> make_encode_worker(const DataSetConfig& config, const DataConfig* data,
                                              const Tokenizer* tokenizer, int64_t vocab_size) {
  return std::make_unique<EncodeWorker>(config, data, tokenizer, vocab_size);
}

std::string encoder_fingerprint(const DataSetConfig& config, const DataConfig* data, const Tokenizer* tokenizer) {
  return StandinEncoder(config, data, tokenizer, 0).fingerprint();
}

}  // namespace chassis
