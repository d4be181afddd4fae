// Turns text into the ids of a document.
#pragma once

#include <cstdint>
#include <string_view>

#include "host/data/document_reader.hpp"

namespace chassis {

// Tokenises a document. Adds BOS at the front and EOS at the end, if the tokenizer has them and they are not there yet.
class TextEncoder {
 public:
  TextEncoder(const Tokenizer& tokenizer, int64_t vocab_size);
  // Fills ids and labels. Throws at `where` if the tokenizer gives an id that the vocabulary does not have.
  void encode(std::string_view text, const SourcePosition& where, Document& document) const;

 private:
  const Tokenizer* tokenizer_;
  int64_t vocab_size_;
};

}  // namespace chassis
