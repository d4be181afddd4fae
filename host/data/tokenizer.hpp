// The tokenizer as the host uses it; a run's tokenizer comes from a plugin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"

namespace chassis {

// Ids of a text; ids[i] covers bytes [begin[i], end[i]) of it.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<uint64_t> begin, end;
};

// The origin of a span of a rendered conversation; numbered as CHASSIS_LEAF_….
enum class ChatLeaf : uint32_t { kContent = 1, kReasoning = 2, kToolCalls = 3, kGeneration = 4 };

// Bytes [begin, end) of the rendered text that come from message number `message`. Jinja templates give only spans of
// the assistant.
struct ChatSpan {
  ChatLeaf leaf = ChatLeaf::kContent;
  uint64_t message = 0;
  uint64_t begin = 0, end = 0;
};

struct ChatRequest {
  std::string messages_json = {};   // an array of objects in OpenAI's format
  std::string tools_json = {};      // an array; empty: none
  std::string variables_json = {};  // an object; empty: none
  std::string template_text = {};   // Jinja source; empty: the tokenizer's own
  int64_t unix_time_s = 0;
  bool generation_prompt = false;
  bool spans = false;
};

struct RenderedChat {
  std::string text;
  std::vector<ChatSpan> spans;  // in the order of begin, without overlap
};

struct TokenText {
  std::string text;  // as the vocabulary spells it
  bool special = false, added = false, unused = false;
};

// [any] for all functions. Errors name the plugin; an id outside the vocabulary is an error.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Replaces `ids` by the ids of the text, without BOS and EOS. Special tokens spelled in the text become those tokens.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  // Also returns the bytes of each id. With `special` false, spelled special tokens are plain text.
  virtual Encoding encode_with_offsets(std::string_view text, bool special = true) const;
  // Leaves out special tokens unless they are wanted; keeps bytes that are not UTF-8.
  virtual std::string decode(std::span<const int32_t> ids, bool keep_special = false) const = 0;

  // All ids are below this.
  virtual int64_t vocab_size() const = 0;
  // -1 if there is none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t pad_id() const = 0;
  // Whether a document begins with bos_id.
  virtual bool adds_bos() const { return bos_id() >= 0; }
  // Changes whenever a text would get other ids.
  virtual std::string fingerprint() const = 0;
  // The library, options and files that it was made from. Tokenised data is reused only if build and fingerprint are
  // equal.
  virtual std::string build() const { return ""; }

  // The defaults are those of a tokenizer without files: no template, no texts of tokens.
  virtual TokenText token(int32_t id) const;
  virtual int32_t id_of(std::string_view text) const;  // -1 if the vocabulary does not spell it
  // Jinja source; empty if it has none.
  virtual std::string chat_template() const { return ""; }
  // Throws a config error if the template refuses the conversation, or if spans cannot be proven (ChatSpansUnproven).
  virtual RenderedChat render(const ChatRequest& chat) const;
};

// Thrown by render() if the spans of a template cannot be proven; its message says why.
class ChatSpansUnproven : public Error {
 public:
  using Error::Error;
};

}  // namespace chassis
