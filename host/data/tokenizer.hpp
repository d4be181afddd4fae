// What the host needs of a tokenizer; the one of a run comes from a plugin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// All functions may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Replaces `ids` by those of the text, without specials.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // Specials are left out; what is not UTF-8 stays as it is.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // Every id is below this.
  virtual int64_t vocab_size() const = 0;
  // -1 if there is none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t pad_id() const = 0;
  // Changes whenever any text would get other ids.
  virtual std::string fingerprint() const = 0;
  // Library and options that it was made from: what is tokenised is kept for these alone, beside the fingerprint.
  virtual std::string build() const { return ""; }
};

}  // namespace chassis
