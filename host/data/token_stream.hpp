// Turns ids that arrive one after the other into pieces of text, without half characters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/tokenizer.hpp"

namespace chassis {

// Rationale: ids cannot be decoded one by one. A character may need several, and some decoders leave out the space in
// front of the first. So each id is decoded together with a few before it, and only what is new and complete is
// returned.
class TokenStream {
 public:
  // The tokenizer must outlive it.
  explicit TokenStream(const Tokenizer& tokenizer, bool keep_special = false)
      : tokenizer_(tokenizer), keep_special_(keep_special) {}

  // Sets the ids that the text continues, such as a prompt; their text is not returned. To be called first, if at all.
  void continue_from(std::span<const int32_t> ids);
  // The text that the id completes; empty if it ends within a character.
  std::string add(int32_t id);
  // The rest, which may be half a character.
  std::string finish();

 private:
  std::string decode() const { return tokenizer_.decode(window_, keep_special_); }
  void slide();

  const Tokenizer& tokenizer_;
  const bool keep_special_;
  std::vector<int32_t> window_;    // ids that were returned, then those since the last complete character
  size_t num_returned_ids_ = 0;    // at the front of window_
  size_t num_returned_bytes_ = 0;  // in the text of window_
};

// The number of bytes of `text` before a character that may continue: a truncated UTF-8 sequence, or U+FFFD in its
// place.
size_t complete_bytes(std::string_view text);

}  // namespace chassis
