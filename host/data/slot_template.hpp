// A chat template made of slots: texts with placeholders, one for each kind of message. Rendering a conversation gives
// the text and, by construction, the bytes that come from each message.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/base/error.hpp"
#include "host/data/record.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// A text in which each {{placeholder}} is replaced.
struct TextSlot {
  struct Piece {
    std::string text;         // in front of the placeholder
    std::string placeholder;  // empty in the last piece if none follows
  };
  std::vector<Piece> pieces;

  bool has(std::string_view placeholder) const;
};

// Splits at placeholders. Throws a config error if one is not closed, or is not in `allowed`.
TextSlot slot_from_text(std::string_view text, const std::vector<std::string>& allowed);

// The place of a text that the family may put into messages of the user.
enum class SlotPlace { kOwn, kFirstUser, kLastUser };

// Conversations that need an unset slot are refused.
struct SlotTemplate {
  std::string name;         // "chatml", or the path of a file; for messages
  std::string source_hash;  // changes with the text of the file
  TextSlot bos;
  std::optional<TextSlot> system, user;      // {{content}}
  SlotPlace system_place = SlotPlace::kOwn;  // with a user: in front of its content
  TextSlot assistant_open;                   // the header; also what is rendered for an answer to be generated
  std::optional<TextSlot> reasoning;         // {{content}}: between header and content
  TextSlot assistant;                        // {{content}}: left out if an answer consists of tool calls alone
  TextSlot assistant_close;
  std::string default_system;  // for conversations without a system message; empty: none
  // A call of the assistant: {{name}}, {{arguments}} as JSON, {{id}}.
  std::optional<TextSlot> tool_call;
  TextSlot tool_calls_open, tool_calls_close;    // around all calls of a message
  TextSlot tool_calls_behind_content;            // between content and calls, if there are both
  std::optional<TextSlot> tool_calls_separator;  // unset: a message has at most one call
  // A result: {{content}}, {{content_json}}, {{id}}, {{name}}. open and close are put around consecutive results.
  std::optional<TextSlot> tool;
  TextSlot tool_open, tool_close;
  // The tools that a conversation offers: {{tools}} is tools_each, with {{tool}} as JSON, for each of them.
  std::optional<TextSlot> tools_system;
  TextSlot tools_each, tools_separator;
  SlotPlace tools_place = SlotPlace::kOwn;  // own: after the text of the system message; user: before that message
  std::vector<TextSlot> stop;               // tokens that end an answer: a text or {{eos}}
  std::set<std::string> strip;              // roles whose content loses white space at both ends

  std::vector<std::string> roles() const;
};

// The texts of the tokenizer's own tokens; empty if it has none.
struct SlotTokens {
  std::string bos, eos;
};

struct SlotChat {
  const std::vector<Message>& messages;
  const std::string& tools_json;
  // Renders the reasoning of all messages, and not only of those after the last one of the user.
  bool keep_reasoning = false;
  bool generation_prompt = false;
};

// With spans of the contents of all messages, not only those of the assistant. Throws config errors without a position.
RenderedChat render_slots(const SlotTemplate& slots, const SlotTokens& tokens, const SlotChat& chat);

// A built-in template: the text of a file in host/data/templates.
struct BuiltinTemplate {
  std::string_view name, text;
};
const std::vector<BuiltinTemplate>& builtin_templates();

}  // namespace chassis
