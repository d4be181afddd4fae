// One parser and one encoder per thread. The parser is new for each chunk, so that its notes do not depend on the
// number of threads.
#include "host/data/encode_worker.hpp"

#include <utility>

#include "host/data/line_reader.hpp"
#include "host/data/record_encoder.hpp"
#include "host/data/record_hash.hpp"

namespace chassis {
namespace {

EncodeOptions options_of(const DataConfig* data, int64_t vocab_size) {
  EncodeOptions options;
  if (data) options = encode_options(*data);
  options.vocab_size = vocab_size;
  return options;
}

class EncodeWorker final : public RowWorker {
 public:
  EncodeWorker(const DataSetConfig& config, const DataConfig* data, const Tokenizer* tokenizer, int64_t vocab_size)
      : config_(config),
        vocab_size_(vocab_size),
        encoder_(tokenizer, options_of(data, vocab_size)),
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
    for (const auto& [what, times] : encoder_.take_counts().changes()) notes.changes[what] += times;
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
  RecordEncoder encoder_;
  std::unique_ptr<RowParser> parser_;
  uint64_t num_empty_ = 0;
};

}  // namespace

std::unique_ptr<RowWorker> make_encode_worker(const DataSetConfig& config, const DataConfig* data,
                                              const Tokenizer* tokenizer, int64_t vocab_size) {
  return std::make_unique<EncodeWorker>(config, data, tokenizer, vocab_size);
}

std::string encoder_fingerprint(const DataSetConfig&, const DataConfig* data, const Tokenizer* tokenizer) {
  return RecordEncoder(tokenizer, options_of(data, 0)).fingerprint();
}

}  // namespace chassis
