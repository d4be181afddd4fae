// The defaults of a tokenizer without files.
#include "host/data/tokenizer.hpp"

namespace chassis {

Encoding Tokenizer::encode_with_offsets(std::string_view, bool) const {
  throw config_error("this tokenizer gives no byte offsets");
}

TokenText Tokenizer::token(int32_t id) const { return {.text = decode(std::span(&id, 1), true)}; }

int32_t Tokenizer::id_of(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, ids);
  return ids.size() == 1 ? ids.front() : -1;
}

RenderedChat Tokenizer::render(const ChatRequest&) const { throw config_error("this tokenizer has no chat template"); }

}  // namespace chassis
