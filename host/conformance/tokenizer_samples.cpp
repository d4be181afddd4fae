#include "host/conformance/tokenizer_samples.hpp"

namespace chassis {

std::vector<TextSample> tokenizer_samples() {
  std::string every_byte, long_text;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  for (int i = 0; i < 400; ++i) long_text += "The quick brown fox jumps over the lazy dog. ";
  long_text.pop_back();
  return {
      {"plain ASCII", "The quick brown fox jumps over 13 lazy dogs.", true},
      {"an empty text", "", true},
      {"one letter", "a"},
      {"white space", "  a\t b\r\n\n c "},
      {"UTF-8", "größer als ASCII: Ελληνικά, 日本語, 한국어, العربية, हिन्दी"},
      {"emoji and joined letters", "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB e\xCC\x81 \xEF\xB7\xBA"},
      {"a zero byte", std::string("a\0b", 3)},
      {"a long text", long_text, true},
      {"invalid UTF-8: a lone continuation byte", "a\x80z", false, true},
      {"invalid UTF-8: a truncated sequence", "a\xE2\x82", false, true},
      {"invalid UTF-8: an overlong slash", "a\xC0\xAFz", false, true},
      {"invalid UTF-8: a surrogate", "a\xED\xA0\x80z", false, true},
      {"every byte", every_byte, false, true},
  };
}

}  // namespace chassis
