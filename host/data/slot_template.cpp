// Rendering walks the messages once. Spans are noted as content is appended, so that they need no search.
#include "host/data/slot_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/python_json.hpp"
#include "host/data/wide_integers.hpp"

namespace chassis {
namespace {

// True for characters that str.strip() of Python removes, and so the filter trim of Jinja.
bool is_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

// The bytes of `text` between white space at its ends.
std::pair<size_t, size_t> stripped(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end) {
    const Character character = first_character(text.substr(begin));
    if (character.num_bytes == 0 || !is_space(character.code)) break;
    begin += character.num_bytes;
  }
  while (end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    const Character character = first_character(text.substr(start, end - start));
    if (character.num_bytes != end - start || !is_space(character.code)) break;
    end = start;
  }
  return {begin, end};
}

using Values = std::initializer_list<std::pair<std::string_view, std::string_view>>;

class Renderer {
 public:
  Renderer(const SlotTemplate& slots, const SlotTokens& tokens, const SlotChat& chat)
      : slots_(slots), tokens_(tokens), chat_(chat) {}

  RenderedChat render() {
    find_users();
    append(slots_.bos);
    const std::string system = system_text();
    for (size_t i = 0; i < chat_.messages.size(); ++i) {
      const Message& message = chat_.messages[i];
      if (i == 0 && message.role != "system" && slots_.system_place == SlotPlace::kOwn && !system.empty())
        append(*slots_.system, {{"content", system}});
      if (message.role == "system")
        append_system(i, system);
      else if (message.role == "user")
        append_user(i, system);
      else if (message.role == "assistant")
        append_assistant(i);
      else if (message.role == "tool" && slots_.tool)
        append_tool(i);
      else
        refuse_role(i);
    }
    if (chat_.generation_prompt) append(slots_.assistant_open);
    return std::move(out_);
  }

 private:
  const Message& message(size_t index) const { return chat_.messages[index]; }

  [[noreturn]] void refuse_role(size_t index) const {
    std::string known;
    for (const std::string& role : slots_.roles()) known += (known.empty() ? "" : ", ") + role;
    throw config_error(fmt::format("messages[{}] has the role \"{}\", which template {} does not have", index,
                                   printable(message(index).role), slots_.name))
        .hint(fmt::format("it has {}; [data.train] tags gives roles of the data other names", known));
  }

  void find_users() {
    for (size_t i = 0; i < chat_.messages.size(); ++i) {
      if (message(i).role != "user") continue;
      if (first_user_ == kNone) first_user_ = i;
      last_user_ = i;
    }
  }

  // The text in front of the first message: the default system message, and the tools if they stand there.
  std::string system_text() {
    std::string text;
    const bool has_own = !chat_.messages.empty() && message(0).role == "system";
    if (has_own)
      text = content_of(message(0));
    else
      text = slots_.default_system;
    if (chat_.tools_json.empty()) return text;
    if (!slots_.tools_system)
      throw config_error(fmt::format("the row offers tools, and template {} has no place for them", slots_.name))
          .hint("leave `tools` out, or choose a template with tools, such as chatml");
    tools_ = tools_text();
    if (slots_.tools_place != SlotPlace::kOwn) return text;
    text += (text.empty() ? "" : "\n\n") + tools_;
    tools_.clear();
    return text;
  }

  std::string tools_text() const {
    bool wide = false;
    const Json tools = parse_json(mark_wide_integers(chat_.tools_json, wide), "tools");
    std::string list;
    for (const Json& tool : tools) {
      if (!list.empty()) list += filled(slots_.tools_separator, {});
      list += filled(slots_.tools_each, {{"tool", python_json(tool, wide)}});
    }
    return filled(*slots_.tools_system, {{"tools", list}});
  }

  void append_system(size_t index, const std::string& system) {
    if (!slots_.system) refuse_role(index);
    if (slots_.system_place != SlotPlace::kOwn) {
      if (index == 0 && first_user_ != kNone) return;  // append_user() does it
      throw config_error(
          fmt::format("messages[{}] has the role \"system\", which template {} puts into a message of the "
                      "user: {}",
                      index, slots_.name, index == 0 ? "there is none" : "it can only be the first"));
    }
    append(*slots_.system, index == 0 ? std::string_view(system) : content_of(message(index)), index);
  }

  void append_user(size_t index, const std::string& system) {
    if (!slots_.user) refuse_role(index);
    if (index == user_of(slots_.tools_place)) out_.text += tools_;
    std::string content;
    if (index == user_of(slots_.system_place) && !system.empty())
      content = filled(*slots_.system, {{"content", system}});
    const size_t before = content.size();
    content += content_of(message(index));
    append(*slots_.user, content, index, before);
  }

  size_t user_of(SlotPlace place) const {
    return place == SlotPlace::kOwn ? kNone : place == SlotPlace::kFirstUser ? first_user_ : last_user_;
  }

  void append_assistant(size_t index) {
    const Message& m = message(index);
    append(slots_.assistant_open);
    const bool recent = last_user_ == kNone || index > last_user_;
    if (!m.reasoning.empty() && slots_.reasoning && (recent || chat_.keep_reasoning)) {
      const size_t begin = out_.text.size();
      append(*slots_.reasoning, {{"content", m.reasoning}});
      add_span(ChatLeaf::kReasoning, index, begin);
    }
    const std::string_view content = content_of(m);
    const bool has_calls = !m.tool_calls_json.empty();
    if (!has_calls || !content.empty()) append(slots_.assistant, content, index);
    if (has_calls) {
      if (!content.empty()) append(slots_.tool_calls_behind_content);
      append_calls(index);
    }
    append(slots_.assistant_close);
  }

  void append_calls(size_t index) {
    const Message& m = message(index);
    if (!slots_.tool_call)
      throw config_error(fmt::format("messages[{}] calls a tool, which template {} cannot write", index, slots_.name))
          .hint("choose a template with tool calls, such as chatml");
    bool wide = false;
    const Json calls =
        parse_json(mark_wide_integers(m.tool_calls_json, wide), fmt::format("messages[{}].tool_calls", index));
    if (calls.size() > 1 && !slots_.tool_calls_separator)
      throw config_error(fmt::format("messages[{}] has {} tool calls, template {} writes only 1 in a message", index,
                                     calls.size(), slots_.name));
    const size_t begin = out_.text.size();
    append(slots_.tool_calls_open);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i > 0) append(*slots_.tool_calls_separator);
      const std::string where = fmt::format("messages[{}].tool_calls[{}]", index, i);
      const Json& call = calls[i].contains("function") ? calls[i]["function"] : calls[i];
      const std::string id = json_string_or(calls[i], "id", "", where);
      if (wide && !wide_integer_of(id).empty()) throw config_error(where + ": 'id' must be a string, not number");
      if (id.empty() && slots_.tool_call->has("id"))
        throw config_error(fmt::format("{} has no id, which template {} writes", where, slots_.name));
      append(*slots_.tool_call, {{"name", json_string(call, "name", where)},
                                 {"arguments", python_json(json_at(call, "arguments", where), wide)},
                                 {"id", id}});
    }
    append(slots_.tool_calls_close);
    add_span(ChatLeaf::kToolCalls, index, begin);
  }

  void append_tool(size_t index) {
    const Message& m = message(index);
    const auto is_tool = [&](size_t i) { return i < chat_.messages.size() && message(i).role == "tool"; };
    if (index == 0 || !is_tool(index - 1)) append(slots_.tool_open);
    if (m.tool_call_id.empty() && slots_.tool->has("id"))
      throw config_error(fmt::format("messages[{}] has no tool_call_id, which template {} writes", index, slots_.name));
    const std::string_view content = content_of(m);
    const std::string as_json = slots_.tool->has("content_json") ? Json(content).dump() : "";
    const size_t begin = out_.text.size();
    const size_t num_spans = out_.spans.size();
    append(*slots_.tool, {{"content", content}, {"content_json", as_json}, {"id", m.tool_call_id}, {"name", m.name}},
           index);
    if (out_.spans.size() == num_spans) add_span(ChatLeaf::kContent, index, begin);
    if (!is_tool(index + 1)) append(slots_.tool_close);
  }

  // The content without the white space that the template strips. Valid until the next call.
  std::string_view content_of(const Message& m) {
    content_ = m.text();
    if (!slots_.strip.contains(m.role)) return content_;
    const auto [begin, end] = stripped(content_);
    return std::string_view(content_).substr(begin, end - begin);
  }

  void add_span(ChatLeaf leaf, size_t index, size_t begin) {
    out_.spans.push_back({leaf, index, begin, out_.text.size()});
  }

  // Notes the span of the content of message `index`, without its first `skipped` bytes.
  void append(const TextSlot& slot, std::string_view content, size_t index, size_t skipped = 0) {
    append(slot, {{"content", content}}, index, skipped);
  }
  void append(const TextSlot& slot, Values values, size_t index, size_t skipped = 0) {
    for (const TextSlot::Piece& piece : slot.pieces) {
      out_.text += piece.text;
      const size_t begin = out_.text.size() + skipped;
      out_.text += value_of(piece.placeholder, values);
      if (piece.placeholder == "content") add_span(ChatLeaf::kContent, index, begin);
    }
  }
  void append(const TextSlot& slot, Values values = {}) { out_.text += filled(slot, values); }

  std::string filled(const TextSlot& slot, Values values) const {
    std::string text;
    for (const TextSlot::Piece& piece : slot.pieces) {
      text += piece.text;
      text += value_of(piece.placeholder, values);
    }
    return text;
  }

  std::string_view value_of(std::string_view placeholder, Values values) const {
    if (placeholder.empty()) return "";
    if (placeholder == "bos") return tokens_.bos;
    if (placeholder == "eos") return tokens_.eos;
    const auto* found =
        std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == placeholder; });
    CHASSIS_CHECK(found != values.end(), "slots were checked when they were read");
    return found->second;
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  const SlotTemplate& slots_;
  const SlotTokens& tokens_;
  const SlotChat& chat_;
  RenderedChat out_;
  std::string content_, tools_;
  size_t first_user_ = kNone, last_user_ = kNone;
};

}  // namespace

bool TextSlot::has(std::string_view placeholder) const {
  return std::any_of(pieces.begin(), pieces.end(),
                     [&](const Piece& piece) { return piece.placeholder == placeholder; });
}

TextSlot slot_from_text(std::string_view text, const std::vector<std::string>& allowed) {
  TextSlot slot;
  while (!text.empty()) {
    const size_t open = text.find("{{");
    TextSlot::Piece& piece = slot.pieces.emplace_back();
    piece.text = text.substr(0, open);
    if (open == std::string_view::npos) break;
    const size_t close = text.find("}}", open);
    if (close == std::string_view::npos) throw config_error("\"{{\" is not closed by \"}}\"");
    piece.placeholder = text.substr(open + 2, close - open - 2);
    if (std::find(allowed.begin(), allowed.end(), piece.placeholder) == allowed.end()) {
      std::string known;
      for (const std::string& name : allowed) known += (known.empty() ? "{{" : ", {{") + name + "}}";
      throw config_error(
          fmt::format("{{{{{}}}}} is not a placeholder here; there are {}", printable(piece.placeholder), known));
    }
    text.remove_prefix(close + 2);
  }
  return slot;
}

std::vector<std::string> SlotTemplate::roles() const {
  std::vector<std::string> roles;
  if (system) roles.push_back("system");
  if (user) roles.push_back("user");
  roles.push_back("assistant");
  if (tool) roles.push_back("tool");
  return roles;
}

RenderedChat render_slots(const SlotTemplate& slots, const SlotTokens& tokens, const SlotChat& chat) {
  return Renderer(slots, tokens, chat).render();
}

}  // namespace chassis
