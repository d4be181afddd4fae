// Turns conversations into text with the template of a configuration: a slot template, or a Jinja template, which the
// tokenizer renders.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"
#include "host/data/data_config.hpp"
#include "host/data/record.hpp"
#include "host/data/slot_template.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// [any] Const functions may be called from several threads.
class ChatRenderer {
 public:
  // The tokenizer outlives the object. Throws a config error without a position if there is no template, or if the
  // tokenizer lacks a token that ends the answers of a slot template.
  ChatRenderer(const Tokenizer& tokenizer, ChatConfig config);

  // Adds the default system message, and keeps or strips reasoning. Spans refer to the messages of `chat`. A Jinja
  // template gives spans of the assistant only, a slot template spans of all roles. Throws config errors without a
  // position.
  RenderedChat render(const ChatRecord& chat, bool spans, bool generation_prompt = false) const;

  // The conversation as the template gets it: with the default system message, and without reasoning that is stripped.
  ChatRecord prepared(const ChatRecord& chat) const;
  // Whether prepared() differs from the conversation, and whether it begins with one more message.
  bool changes(const ChatRecord& chat) const { return config_.reasoning == Reasoning::kStrip || adds_system(chat); }
  bool adds_system(const ChatRecord& chat) const;
  // Spans refer to the messages of the prepared conversation.
  RenderedChat render_prepared(const ChatRecord& chat, bool spans, bool generation_prompt) const;

  bool is_jinja() const { return config_.slots == nullptr; }
  // For messages: "template chatml", "the tokenizer's chat template".
  const std::string& name() const { return name_; }
  // The text that the template writes before an answer to be generated; empty if it cannot be determined.
  const std::string& generation_prompt() const { return generation_prompt_; }
  // The text with which answers begin in a row instead of the generation prompt; empty if they begin with that.
  const std::string& other_begin() const { return other_begin_; }
  // Ids that may end an answer: those of ChatConfig, the tokenizer's EOS, and those of a slot template.
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }
  // Changes whenever some conversation would get another text for a reason other than the tokenizer.
  Json key() const;

 private:
  bool takes_parts(const ChatRecord& chat, const std::string& role) const;
  RenderedChat render_jinja(const ChatRecord& chat, const std::function<bool(const Message&)>& keeps_parts, bool spans,
                            bool generation_prompt) const;
  void require_template() const;
  void set_default_system();
  void find_stop_ids();
  void find_generation_prompt();

  const Tokenizer& tokenizer_;
  ChatConfig config_;
  SlotTokens tokens_;
  std::string name_, variables_json_;
  int64_t unix_time_s_ = 0;
  std::string generation_prompt_, other_begin_;
  std::vector<int32_t> stop_ids_;
  struct PartsOfRoles;
  std::shared_ptr<PartsOfRoles> parts_;  // whether the template reads lists of parts
};

// The messages as chat templates get them: an array of objects in OpenAI's format. Parts of a content are joined unless
// `keeps_parts`.
std::string messages_json(const std::vector<Message>& messages,
                          const std::function<bool(const Message&)>& keeps_parts = {});

// Midnight in UTC of "YYYY-MM-DD". Throws a config error without a position if the text is not a date.
int64_t unix_time_of_date(const std::string& date);

// The id that the tokenizer gives for a text which spells one token; -1 if it gives anything else.
int32_t spelled_token(const Tokenizer& tokenizer, const std::string& text);

// Splits "<think>…</think>" off the front of an answer; empty if there is none.
std::string take_inline_reasoning(std::string& content);

}  // namespace chassis
