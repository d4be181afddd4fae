// Calls of a tokenizer for its conformance tests, with the results as values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/conformance/tokenizer_subject.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis::tokenizer_calls {

// Thrown when the tokenizer refuses a call, with its message, or answers it wrongly (`is_failure`).
struct Refused {
  int32_t code = 0;
  std::string text;
  bool is_failure = false;
};

void open(const TokenizerSubject& subject, const std::string& directory);
// Special ids are -1 unless the tokenizer sets them.
chassis_tokenizer_info_t info(const TokenizerSubject& subject);
std::vector<Encoding> encode_batch(const TokenizerSubject& subject, const std::vector<std::string>& texts,
                                   uint32_t flags);
Encoding encode(const TokenizerSubject& subject, const std::string& text, uint32_t flags = CHASSIS_ENCODE_SPECIAL);
std::string decode(const TokenizerSubject& subject, const std::vector<int32_t>& ids, uint32_t flags = 0);
TokenText token(const TokenizerSubject& subject, int32_t id);
int32_t id_of(const TokenizerSubject& subject, std::string_view text);
RenderedChat render(const TokenizerSubject& subject, const ChatRequest& chat, uint32_t more_flags = 0);

}  // namespace chassis::tokenizer_calls
