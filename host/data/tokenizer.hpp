// The tokenizer as the host uses it; a run's tokenizer comes from a plugin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// [any] for all functions.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Replaces `ids` by the ids of the text, without special tokens.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // Leaves out special tokens; keeps bytes that are not UTF-8.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // All ids are below this.
  virtual int64_t vocab_size() const = 0;
  // -1 if there is none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t pad_id() const = 0;
  // Changes whenever a text would get other ids.
  virtual std::string fingerprint() const = 0;
  // The library and options that it was made from. Tokenised data is used again only with equal build and fingerprint.
  virtual std::string build() const { return ""; }
};

}  // namespace chassis
