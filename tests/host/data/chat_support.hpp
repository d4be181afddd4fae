// A tokenizer with special tokens for tests of conversations, a ChatML slot template, and rows with their trained
// tokens in brackets.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/data/record_encoder.hpp"
#include "tests/host/data/support.hpp"

namespace chassis {

// Ids are bytes, but "\n\n" and " a" are one token each, and special tokens are found first. render() does what the
// test says.
class ChatTokenizer : public Tokenizer {
 public:
  explicit ChatTokenizer(std::vector<std::string> special = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"},
                         std::string bos = "", std::string eos = "</s>")
      : special_(std::move(special)), bos_(std::move(bos)), eos_(std::move(eos)) {}

  std::function<RenderedChat(const ChatRequest&)> jinja;
  std::string jinja_source;

  void encode(std::string_view text, std::vector<int32_t>& ids) const override { ids = encode_with_offsets(text).ids; }
  Encoding encode_with_offsets(std::string_view text, bool = true) const override {
    Encoding out;
    for (size_t at = 0; at < text.size();) {
      size_t length = 1;
      int32_t id = static_cast<unsigned char>(text[at]);
      for (size_t i = 0; i < pieces().size(); ++i) {
        if (!text.substr(at).starts_with(pieces()[i])) continue;
        id = 256 + static_cast<int32_t>(i);
        length = pieces()[i].size();
        break;
      }
      out.ids.push_back(id);
      out.begin.push_back(at);
      out.end.push_back(at += length);
    }
    return out;
  }
  std::string decode(std::span<const int32_t> ids, bool = false) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 256 ? std::string(1, static_cast<char>(id)) : piece(id);
    return text;
  }
  int64_t vocab_size() const override { return 256 + static_cast<int64_t>(pieces().size()); }
  int32_t bos_id() const override { return bos_.empty() ? -1 : id_of(bos_); }
  int32_t eos_id() const override { return eos_.empty() ? -1 : id_of(eos_); }
  int32_t pad_id() const override { return -1; }
  std::string fingerprint() const override { return "chat"; }
  TokenText token(int32_t id) const override {
    const bool special = id >= 256 && id < 256 + static_cast<int32_t>(special_.size());
    return {.text = decode(std::span(&id, 1)), .special = special, .added = special};
  }
  int32_t id_of(std::string_view text) const override {
    const auto found = std::find(pieces().begin(), pieces().end(), text);
    if (found != pieces().end()) return 256 + static_cast<int32_t>(found - pieces().begin());
    return text.size() == 1 ? static_cast<unsigned char>(text[0]) : -1;
  }
  std::string chat_template() const override { return jinja_source; }
  RenderedChat render(const ChatRequest& chat) const override { return jinja(chat); }

 private:
  const std::vector<std::string>& pieces() const {
    if (pieces_.empty()) {
      pieces_ = special_;
      pieces_.insert(pieces_.end(), {"\n\n", " a"});
    }
    return pieces_;
  }
  std::string piece(int32_t id) const { return pieces().at(static_cast<size_t>(id - 256)); }

  std::vector<std::string> special_;
  mutable std::vector<std::string> pieces_;
  std::string bos_, eos_;
};

inline const ChatTokenizer kTokenizer;

inline SlotTemplate chatml_slots() {
  const auto slot = [](const char* text) { return slot_from_text(text, {"content", "name", "arguments"}); };
  SlotTemplate t;
  t.name = "chatml";
  t.system = slot("<|im_start|>system\n{{content}}<|im_end|>\n");
  t.user = slot("<|im_start|>user\n{{content}}<|im_end|>\n");
  t.assistant_open = slot("<|im_start|>assistant\n");
  t.reasoning = slot("<think>\n{{content}}\n</think>\n");
  t.assistant = slot("{{content}}");
  t.assistant_close = slot("<|im_end|>\n");
  t.tool_call = slot("<tool_call>{{name}} {{arguments}}</tool_call>");
  t.tool_calls_behind_content = slot("\n");
  t.tool = slot("<|im_start|>tool\n{{content}}<|im_end|>\n");
  t.stop = {slot("<|im_end|>")};
  return t;
}

inline Message message_of(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({std::move(text), std::nullopt});
  return message;
}

inline ChatRecord chat_of(std::vector<std::pair<std::string, std::string>> messages) {
  ChatRecord chat;
  for (auto& [role, text] : messages) chat.messages.push_back(message_of(std::move(role), std::move(text)));
  return chat;
}

inline EncodeOptions chatml_options() {
  EncodeOptions options;
  options.supervised = true;
  options.chat.template_name = "chatml";
  options.chat.slots = std::make_shared<SlotTemplate>(chatml_slots());
  return options;
}

// The row's text with [trained tokens] in brackets; "(dropped: reason)" if the row was dropped.
inline std::string encoded(RecordEncoder& encoder, const Tokenizer& tokenizer, const Record& record) {
  Document document;
  if (!encoder.encode(record, {"chat.jsonl", 7, 0}, document)) return "(dropped: " + encoder.drop_reason() + ")";
  std::string text;
  bool inside = false;
  for (size_t i = 0; i < document.ids.size(); ++i) {
    const bool trained = document.labels.empty() || document.labels[i] != kIgnoreLabel;
    if (trained && !document.labels.empty()) {
      EXPECT_EQ(document.labels[i], document.ids[i]);
    }
    if (trained != inside) text += trained ? "[" : "]";
    inside = trained;
    text += tokenizer.decode(std::span(&document.ids[i], 1), true);
  }
  return text + (inside ? "]" : "");
}

inline std::string encoded(const Tokenizer& tokenizer, const EncodeOptions& options, const Record& record) {
  RecordEncoder encoder(&tokenizer, options);
  return encoded(encoder, tokenizer, record);
}

}  // namespace chassis
