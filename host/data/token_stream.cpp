// Decodes a short window of ids again for each new one, as text-generation-inference does.
#include "host/data/token_stream.hpp"

#include <algorithm>

namespace chassis {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
constexpr int kMaxBytesOfOneCharacter = 4;
constexpr size_t kMaxContextIds = 16;
// More ids than any character has. If more are held, their text is returned as it is.
constexpr size_t kMaxHeldIds = 64;

// Bytes of a UTF-8 sequence by its first byte; 0 if no sequence begins with it.
size_t sequence_bytes(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
}

}  // namespace

size_t complete_bytes(std::string_view text) {
  for (size_t back = 1; back < kMaxBytesOfOneCharacter && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    if (sequence_bytes(byte) > back) text.remove_suffix(back);
    break;
  }
  // Some decoders replace each byte of an incomplete character.
  for (int i = 0; i + 1 < kMaxBytesOfOneCharacter && text.ends_with(kReplacement); ++i)
    text.remove_suffix(kReplacement.size());
  return text.size();
}

void TokenStream::continue_from(std::span<const int32_t> ids) {
  const std::span<const int32_t> last = ids.last(std::min(ids.size(), kMaxContextIds));
  window_.assign(last.begin(), last.end());
  num_returned_ids_ = window_.size();
  num_returned_bytes_ = decode().size();
}

std::string TokenStream::add(int32_t id) {
  window_.push_back(id);
  const std::string text = decode();
  const bool holds_too_much = window_.size() - num_returned_ids_ > kMaxHeldIds;
  const size_t complete = holds_too_much ? text.size() : complete_bytes(text);
  std::string piece;
  if (complete > num_returned_bytes_) {
    piece = text.substr(num_returned_bytes_, complete - num_returned_bytes_);
    num_returned_bytes_ = complete;
  }
  if (complete == text.size()) slide();
  return piece;
}

std::string TokenStream::finish() {
  const std::string text = decode();
  const std::string rest = text.substr(std::min(num_returned_bytes_, text.size()));
  window_.clear();
  num_returned_ids_ = num_returned_bytes_ = 0;
  return rest;
}

// Everything in the window was returned; the ids since the last slide become the context of the next.
void TokenStream::slide() {
  const auto first = window_.begin() + static_cast<ptrdiff_t>(num_returned_ids_);
  const std::vector<int32_t> newest(first, window_.end());
  // Ids without a text, such as special ones, are no context for a space.
  const bool is_context = !tokenizer_.decode(newest, keep_special_).empty();
  if (is_context || window_.size() > kMaxContextIds + kMaxHeldIds) window_ = newest;
  num_returned_ids_ = window_.size();
  num_returned_bytes_ = decode().size();
}

}  // namespace chassis
