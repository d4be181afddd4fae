// Adds BOS and EOS, and checks the ids.
#include "host/data/text_reader.hpp"

#include <fmt/format.h>

namespace chassis {

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

}  // namespace chassis
