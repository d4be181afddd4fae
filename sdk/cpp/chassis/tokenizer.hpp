// The base of tokenizers: text to ids with byte offsets and back, chat templates, and training a vocabulary.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/kind/tokenizer.h"
#include "chassis/member.hpp"
#include "chassis/sized.hpp"

CHASSIS_SDK_BEGIN

// The texts live as long as the instance.
struct TokenizerInfo {
  int32_t bos_id = -1, eos_id = -1, pad_id = -1, unk_id = -1;  // -1: none
  int64_t vocab_size = 0;
  std::string_view fingerprint;         // changes whenever some text would get other ids
  std::string_view chat_template = {};  // Jinja source of the opened directory
  bool adds_bos = false;                // a document begins with bos_id
};

// One entry of the vocabulary; the text lives as long as the instance.
struct TokenInfo {
  std::string_view text;  // as the vocabulary spells it
  bool special = false;   // decoded only on request
  bool added = false;     // matched as a whole before the text is split
  bool unused = false;    // an id without a text
};

// The ids of one text.
class Tokens {
 public:
  // The next id, which covers bytes [begin, end) of the text. `begin` never decreases.
  void push(int32_t id, uint64_t begin, uint64_t end) {
    ids_.push_back(id);
    begin_.push_back(begin);
    end_.push_back(end);
  }
  void clear() noexcept { ids_.clear(), begin_.clear(), end_.clear(); }

  const std::vector<int32_t>& ids() const noexcept { return ids_; }
  const std::vector<uint64_t>& begin() const noexcept { return begin_; }
  const std::vector<uint64_t>& end() const noexcept { return end_; }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint64_t> begin_, end_;
};

// A conversation; chassis_chat_t describes the texts.
struct Chat {
  std::string_view messages_json, tools_json, variables_json, template_text;
  int64_t unix_time_s = 0;
  bool generation_prompt = false, spans = false;
};

// Receives the text once, and then its spans in the order of `begin`.
class ChatSink {
 public:
  explicit ChatSink(const chassis_chat_sink_t& raw) : raw_(raw) {}
  void text(std::string_view text) { raw_.text(&raw_, str(text)); }
  // `leaf`: CHASSIS_LEAF_…; bytes [begin, end) of the text come from this message.
  void span(uint32_t leaf, uint64_t message, uint64_t begin, uint64_t end) {
    const chassis_chat_span_t span = {sizeof span, leaf, message, begin, end};
    raw_.span(&raw_, &span);
  }

 private:
  const chassis_chat_sink_t& raw_;
};

struct VocabularyRequest {
  int64_t vocab_size = 0;      // with special tokens
  uint64_t min_frequency = 0;  // pairs that occur less often are not merged
  uint32_t num_threads = 1;    // at most
};

class TextSource {
 public:
  TextSource(const Host& host, const chassis_text_source_t& raw) : host_(host), raw_(raw) {}
  // Valid until the next call; nothing after the last text.
  std::optional<std::string_view> next() {
    chassis_str_t text{};
    uint32_t is_end = 0;
    host_.check(raw_.next(&raw_, &text, &is_end));
    return is_end ? std::nullopt : std::optional(text_of(text));
  }

 private:
  const Host& host_;
  const chassis_text_source_t& raw_;
};

class FileSink {
 public:
  FileSink(const Host& host, const chassis_file_sink_t& raw) : host_(host), raw_(raw) {}
  // A file of the directory that is being made; `name` has no folder.
  void file(std::string_view name, std::string_view content) { host_.check(raw_.file(&raw_, str(name), str(content))); }

 private:
  const Host& host_;
  const chassis_file_sink_t& raw_;
};

// Functions that are [any] are called from several threads at once.
class Tokenizer : public Member {
 public:
  static constexpr std::string_view kKind = "tokenizer";
  using Member::Member;

  // [control] Overridden by tokenizers that read the files of a model directory. Called once, before all others but
  // train(). Empty: there is no directory; a tokenizer that needs one throws INVALID_ARGUMENT.
  virtual void open(std::string_view /*directory*/) {}
  // [any]
  virtual TokenizerInfo info() const = 0;
  // [any] Ids of the text, without ids that it does not spell (no BOS, no EOS). If `special`, special tokens that the
  // text spells become those tokens. `out` is empty.
  virtual void encode(std::string_view text, bool special, Tokens& out) const = 0;
  // [any] Appends the bytes of the ids; special tokens only if `keep_special`. An id outside the vocabulary is
  // OUT_OF_RANGE.
  virtual void decode(std::span<const int32_t> ids, bool keep_special, std::string& out) const = 0;
  // [any] OUT_OF_RANGE as in decode.
  virtual TokenInfo token(int32_t id) const = 0;
  // [any] The id of the entry that the vocabulary spells as `text`, or -1.
  virtual int32_t id_of(std::string_view text) const = 0;
  // [any] Overridden by tokenizers that render chat templates. INVALID_ARGUMENT: the template refuses the conversation.
  // FAILED_PRECONDITION: spans are wanted and cannot be proven for this template.
  virtual void render(const Chat& /*chat*/, ChatSink& /*out*/) const {}
  // [control] Overridden by tokenizers that train a vocabulary: writes the files of a directory that open() reads.
  virtual void train(const VocabularyRequest& /*request*/, TextSource& /*texts*/, FileSink& /*out*/) {}

  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static constexpr chassis_tokenizer_t kTable = {
        sizeof(chassis_tokenizer_t),
        0,
        kOverridden<&Tokenizer::open, &T::open> ? &open_entry : nullptr,
        &info_entry<kTrains<T>>,
        &encode_entry,
        &decode_entry,
        &token_entry,
        &id_of_entry,
        kOverridden<&Tokenizer::render, &T::render> ? &render_entry : nullptr,
        kTrains<T> ? &train_entry : nullptr};
    return id == CHASSIS_TOKENIZER_ID ? &kTable : nullptr;
  }

 protected:
  // Throws the OUT_OF_RANGE of decode() and token().
  static void check_id(int32_t id, int64_t vocab_size) {
    if (id < 0 || id >= vocab_size)
      throw Failure(CHASSIS_OUT_OF_RANGE, "token id ", id, " is outside the vocabulary of ", vocab_size);
  }

 private:
  template <typename T>
  static constexpr bool kTrains = kOverridden<&Tokenizer::train, &T::train>;

  template <typename Body>
  static chassis_status_t* call(chassis_instance* self, Body&& body) noexcept {
    Tokenizer& tokenizer = member_of<Tokenizer>(self);
    return guard(tokenizer.host().table(), [&] { body(tokenizer); });
  }
  static bool flag_of(uint32_t flags, uint32_t flag, std::string_view function) {
    if ((flags & ~flag) != 0) fail_invalid(function, ": unknown flags ", flags & ~flag);
    return (flags & flag) != 0;
  }

  static chassis_status_t* open_entry(chassis_instance* self, chassis_str_t directory) noexcept {
    return call(self, [&](Tokenizer& tokenizer) { tokenizer.open(text_of(directory)); });
  }
  template <bool Trains>
  static chassis_status_t* info_entry(chassis_instance* self, chassis_tokenizer_info_t* out) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) {
      const TokenizerInfo info = tokenizer.info();
      const uint32_t flags =
          (info.adds_bos ? CHASSIS_TOKENIZER_ADDS_BOS : 0u) | (Trains ? CHASSIS_TOKENIZER_TRAINS : 0u);
      write_sized<chassis_tokenizer_info_t>({0, flags, info.bos_id, info.eos_id, info.pad_id, info.unk_id,
                                             info.vocab_size, str(info.fingerprint), str(info.chat_template)},
                                            out);
    });
  }
  static chassis_status_t* encode_entry(chassis_instance* self, const chassis_str_t* texts, uint64_t num_texts,
                                        uint32_t flags, const chassis_token_sink_t* sink) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) {
      const bool special = flag_of(flags, CHASSIS_ENCODE_SPECIAL, "encode");
      Tokens tokens;
      for (uint64_t i = 0; i < num_texts; ++i) {
        tokens.clear();
        tokenizer.encode(text_of(texts[i]), special, tokens);
        sink->tokens(sink, i, tokens.ids().data(), tokens.begin().data(), tokens.end().data(), tokens.ids().size());
      }
    });
  }
  static chassis_status_t* decode_entry(chassis_instance* self, const int32_t* ids, uint64_t num_ids, uint32_t flags,
                                        const chassis_text_sink_t* sink) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) {
      std::string text;
      tokenizer.decode({ids, num_ids}, flag_of(flags, CHASSIS_DECODE_KEEP_SPECIAL, "decode"), text);
      sink->text(sink, str(text));
    });
  }
  static chassis_status_t* token_entry(chassis_instance* self, int32_t id, chassis_token_t* out) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) {
      const TokenInfo token = tokenizer.token(id);
      const uint32_t flags = (token.special ? CHASSIS_TOKEN_SPECIAL : 0u) | (token.added ? CHASSIS_TOKEN_ADDED : 0u) |
                             (token.unused ? CHASSIS_TOKEN_UNUSED : 0u);
      write_sized<chassis_token_t>({0, flags, str(token.text)}, out);
    });
  }
  static chassis_status_t* id_of_entry(chassis_instance* self, chassis_str_t text, int32_t* out) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) { *out = tokenizer.id_of(text_of(text)); });
  }
  static chassis_status_t* render_entry(chassis_instance* self, const chassis_chat_t* raw,
                                        const chassis_chat_sink_t* out) noexcept {
    return call(self, [&](const Tokenizer& tokenizer) {
      const chassis_chat_t chat = read_sized(raw);
      constexpr uint32_t kKnown = CHASSIS_CHAT_GENERATION_PROMPT | CHASSIS_CHAT_SPANS;
      if ((chat.flags & ~kKnown) != 0) fail_invalid("render: unknown flags ", chat.flags & ~kKnown);
      ChatSink sink(*out);
      tokenizer.render({text_of(chat.messages_json), text_of(chat.tools_json), text_of(chat.variables_json),
                        text_of(chat.template_text), chat.unix_time_s,
                        (chat.flags & CHASSIS_CHAT_GENERATION_PROMPT) != 0, (chat.flags & CHASSIS_CHAT_SPANS) != 0},
                       sink);
    });
  }
  static chassis_status_t* train_entry(chassis_instance* self, const chassis_vocabulary_t* vocabulary,
                                       const chassis_text_source_t* source, const chassis_file_sink_t* sink) noexcept {
    return call(self, [&](Tokenizer& tokenizer) {
      const chassis_vocabulary_t request = read_sized(vocabulary);
      TextSource texts(tokenizer.host(), *source);
      FileSink files(tokenizer.host(), *sink);
      tokenizer.train({request.vocab_size, request.min_frequency, request.num_threads}, texts, files);
    });
  }
};

CHASSIS_SDK_END
