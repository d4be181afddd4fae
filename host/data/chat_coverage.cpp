// Marks are words that neither the conversation nor its text has, so that no template takes them for anything else.
#include "host/data/chat_coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/lower_case.hpp"

namespace chassis {
namespace {

using What = Omission::What;

constexpr size_t kMaxProvenKinds = 4096;
// Most messages, over all renders of one row, that are rendered to find those whose marks a template refuses.
constexpr size_t kMaxRendered = size_t{1} << 22;
constexpr std::string_view kThinkTags[] = {"<think>", "</think>"};

std::string_view trimmed_text(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool has_think_tag(std::string_view text) {
  return text.find(kThinkTags[0]) != std::string_view::npos || text.find(kThinkTags[1]) != std::string_view::npos;
}

// The properties that decide how a template treats a message, apart from the texts themselves.
std::string kind_of_message(const Message& message) {
  std::string kind = message.role + ":";
  bool is_empty = true, thinks = false;
  for (const ContentPart& part : message.content) {
    is_empty = is_empty && trimmed_text(part.text).empty();
    thinks = thinks || has_think_tag(part.text);
  }
  kind += !message.has_content ? '0' : is_empty ? 'e' : message.content_is_parts ? 'p' : 't';
  if (thinks) kind += 'k';
  if (!message.reasoning.empty()) kind += 'r';
  if (!message.tool_calls_json.empty()) kind += message.tool_calls_json.find("},{") != std::string::npos ? "cc" : "c";
  return kind;
}

// A kind for each message: its own, those of its neighbours, and its place.
std::vector<std::string> kinds_of_messages(const ChatRecord& chat) {
  const size_t count = chat.messages.size();
  std::vector<std::string> own;
  own.reserve(count);
  for (const Message& message : chat.messages) own.push_back(kind_of_message(message));
  size_t last_user = count;
  for (size_t i = 0; i < count; ++i)
    if (chat.messages[i].role == "user") last_user = i;
  std::vector<std::string> kinds(count);
  for (size_t i = 0; i < count; ++i) {
    std::string& kind = kinds[i];
    kind = own[i];
    kind += i == 0 ? "|" : "|" + own[i - 1];
    kind += i + 1 == count ? "|" : "|" + own[i + 1];
    kind += own[0].starts_with("system:") ? "|s" : "|";
    if (!chat.tools_json.empty()) kind += 'o';
    if (last_user < count) kind += i < last_user ? '<' : i == last_user ? '=' : '>';
  }
  return kinds;
}

// Calls `visit` with every string inside the value.
template <class Visit>
void for_each_string(Json& value, const Visit& visit) {
  if (value.is_string()) return visit(value);
  if (value.is_structured())
    for (auto& item : value) for_each_string(item, visit);
}

Json& function_of(Json& call) {
  const auto found = call.find("function");
  return found != call.end() && found->is_object() ? *found : call;
}

std::vector<std::string> names_of_tools(const std::string& tools_json) {
  std::vector<std::string> names;
  Json tools = parse_json_or_null(tools_json);
  if (!tools.is_array()) return names;
  for (Json& tool : tools) {
    if (!tool.is_object()) continue;
    const Json& function = function_of(tool);
    if (const auto name = function.find("name"); name != function.end() && name->is_string())
      names.push_back(name->get<std::string>());
  }
  return names;
}

bool holds(const std::string& text, std::string_view part, size_t from = 0) {
  return text.find(part, from) != std::string::npos;
}

// Searches one text for many parts. Most parts follow each other, so a search begins where the last one ended.
class OrderedSearch {
 public:
  explicit OrderedSearch(const std::string& text) : text_(text) {}

  // True if the text holds the part anywhere.
  bool holds(std::string_view part) {
    size_t at = text_.find(part, next_);
    if (at == std::string::npos) at = text_.find(part);
    if (at == std::string::npos) return false;
    next_ = at + part.size();
    return true;
  }

 private:
  const std::string& text_;
  size_t next_ = 0;
};

// True if the text holds the value as it is, or as JSON escapes it.
bool holds_value(const std::string& text, const std::string& value, size_t from) {
  if (value.empty() || holds(text, value, from)) return true;
  const std::string quoted = Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  return holds(text, std::string_view(quoted).substr(1, quoted.size() - 2), from);
}

bool holds_calls(const std::string& text, const std::string& calls_json, size_t from) {
  Json calls = parse_json_or_null(calls_json);
  if (!calls.is_array()) return false;
  bool all = true;
  for (Json& call : calls) {
    Json& function = function_of(call);
    if (const auto name = function.find("name"); name != function.end() && name->is_string())
      all = all && holds(text, name->get_ref<const std::string&>(), from);
    if (const auto arguments = function.find("arguments"); arguments != function.end())
      for_each_string(*arguments,
                      [&](Json& value) { all = all && holds_value(text, value.get_ref<const std::string&>(), from); });
  }
  return all;
}

// Puts marks into the parts of a conversation, and knows to which part each belongs.
class Marker {
 public:
  struct Mark {
    What what = What::kContent;
    size_t message = 0;
    size_t piece = 0;  // index of the piece of content in the message, or of the call
    bool is_end = false;
    std::string word;
    std::string name = "";  // of the function, to whose end the mark is added; empty: another text
    bool is_seen = false;
    bool is_python = false;  // seen as {'name': 'f'}
  };

  Marker(const ChatRecord& chat, const std::string& text) {
    const auto is_used = [&] {
      if (holds(text, tag_) || holds(chat.tools_json, tag_)) return true;
      return std::any_of(chat.messages.begin(), chat.messages.end(), [&](const Message& message) {
        return holds(message.text(), tag_) || holds(message.tool_calls_json, tag_);
      });
    };
    while (is_used()) tag_ += 'k';
  }

  // Called for each message, in their order.
  void mark_message(ChatRecord& chat, size_t index) {
    Message& message = chat.messages[index];
    size_t num_pieces = 0;
    begins_.push_back(marks_.size());
    for (ContentPart& part : message.content) part.text = marked(part.text, message, index, num_pieces);
    if (!message.tool_calls_json.empty()) mark_calls(message, index);
  }

  // Called once, after the last message.
  void mark_tools(ChatRecord& chat) {
    begins_.push_back(marks_.size());
    Json tools = parse_json_or_null(chat.tools_json);
    if (!tools.is_array()) return;
    for (Json& tool : tools) {
      if (!tool.is_object()) continue;
      Json& function = function_of(tool);
      if (const auto name = function.find("name"); name != function.end() && name->is_string())
        mark_name(*name, What::kTools, 0, 0);
    }
    chat.tools_json = tools.dump();
  }

  void look(const std::string& text) {
    prints_python_ = prints_python_ || holds(text, "'" + added_argument() + "': '");
    see_words(text);
    if (!std::ranges::all_of(marks_, &Mark::is_seen)) see_words(lower_case(text));
  }
  // Count marks as seen, since a template that fails on the marks of a part reads it.
  void see_message(size_t message) {
    for (size_t i = begins_[message]; i < begins_[message + 1]; ++i) marks_[i].is_seen = true;
  }
  void see_tools() {
    for (size_t i = begins_.back(); i < marks_.size(); ++i) marks_[i].is_seen = true;
  }

  std::span<const Mark> marks_of(size_t message) const {
    return std::span(marks_).subspan(begins_[message], begins_[message + 1] - begins_[message]);
  }
  std::span<const Mark> marks_of_tools() const { return std::span(marks_).subspan(begins_.back()); }
  // Whether arguments of calls are printed as {'city': 'Lima'}.
  bool prints_python() const { return prints_python_; }

 private:
  std::string added_argument() const { return tag_ + "argument"; }

  // A word is the tag, the number of its mark and "x".
  void see_words(std::string_view text) {
    for (size_t at = text.find(tag_); at != std::string_view::npos; at = text.find(tag_, at + tag_.size())) {
      const char* const begin = text.data() + at + tag_.size();
      const char* const text_end = text.data() + text.size();
      size_t number = 0;
      const auto [end, error] = std::from_chars(begin, text_end, number);
      if (error != std::errc() || end == text_end || *end != 'x' || number >= marks_.size()) continue;
      if (*begin == '0' && end - begin > 1) continue;
      marks_[number].is_seen = true;
      marks_[number].is_python |= is_python_name(text, at, static_cast<size_t>(end + 1 - text.data()), marks_[number]);
    }
  }

  // Whether the mark from `begin` to `end` stands in {'name': 'f'}.
  static bool is_python_name(std::string_view text, size_t begin, size_t end, const Mark& mark) {
    if (mark.name.empty() || end >= text.size() || text[end] != '\'') return false;
    const std::string_view before = text.substr(0, begin);
    return before.ends_with(mark.name) && before.substr(0, before.size() - mark.name.size()).ends_with("'name': '");
  }

  void mark_name(Json& value, What what, size_t message, size_t piece) {
    std::string name = value.get<std::string>();
    value = name + add(what, message, piece, true);
    marks_.back().name = std::move(name);
  }

  std::string add(What what, size_t message, size_t piece, bool is_end) {
    marks_.push_back({what, message, piece, is_end, fmt::format("{}{}x", tag_, marks_.size())});
    return marks_.back().word;
  }

  // If a text begins or ends with a tag, such as <tool_response>, its marks are put inside the tags, since templates
  // may look for them.
  std::string marked(const std::string& text, const Message& message, size_t index, size_t& num_pieces) {
    std::vector<std::pair<size_t, size_t>> bounds;
    size_t begin = 0;
    while (message.role == "assistant") {
      size_t at = std::string::npos, length = 0;
      for (const std::string_view tag : kThinkTags)
        if (const size_t found = text.find(tag, begin); found < at) at = found, length = tag.size();
      if (at == std::string::npos) break;
      bounds.emplace_back(begin, at);
      begin = at + length;
    }
    bounds.emplace_back(begin, text.size());
    std::string out;
    size_t done = 0;
    for (const auto& [from, to] : bounds) {
      const std::string_view piece = trimmed_text(std::string_view(text).substr(from, to - from));
      if (piece.empty()) continue;
      const size_t start = static_cast<size_t>(piece.data() - text.data());
      size_t open = start, close = start + piece.size();
      if (piece.starts_with('<') && piece.find('>') != std::string_view::npos) open = start + piece.find('>') + 1;
      if (piece.ends_with('>') && piece.rfind('<') != std::string_view::npos) close = start + piece.rfind('<');
      if (open > close) open = start, close = start + piece.size();
      out += text.substr(done, open - done) + add(What::kContent, index, num_pieces, false);
      out += text.substr(open, close - open) + add(What::kContent, index, num_pieces, true);
      done = close;
      ++num_pieces;
    }
    return out + text.substr(done);
  }

  void mark_calls(Message& message, size_t index) {
    Json calls = parse_json_or_null(message.tool_calls_json);
    if (!calls.is_array()) return;
    size_t number = 0;
    for (Json& call : calls) {
      Json& function = function_of(call);
      if (const auto name = function.find("name"); name != function.end() && name->is_string())
        mark_name(*name, What::kToolCalls, index, number);
      const auto arguments = function.find("arguments");
      if (arguments != function.end() && arguments->is_object() && !arguments->empty()) {
        for_each_string(*arguments, [&](Json& value) {
          value = value.get<std::string>() + add(What::kArguments, index, number, true);
        });
        // If the arguments hold no text, this added one shows whether they are printed.
        (*arguments)[added_argument()] = add(What::kArguments, index, number, false);
      }
      ++number;
    }
    message.tool_calls_json = calls.dump();
  }

  std::string tag_ = "qzx";
  std::vector<Mark> marks_;
  std::vector<size_t> begins_;  // index of the first mark of each message, and of the tools
  bool prints_python_ = false;
};

using Marks = std::span<const Marker::Mark>;  // of one message, or of the tools

Error too_many_refused(size_t num_messages) {
  return config_error(fmt::format("the template refuses changed texts in many of the {} messages, so it would take too "
                                  "long to find out whether it shows all of them",
                                  num_messages))
      .hint("divide the conversation, or set data.template to a slot template, such as \"chatml\"");
}

// The part of the content of a message that is lost, by its marks. `is_whole` says whether the rendered text holds the
// content unchanged.
template <class IsWhole>
std::optional<What> lost_content(Marks marks, const IsWhole& is_whole) {
  size_t num_pieces = 0, num_seen = 0, num_halves = 0;
  bool last_is_seen = false;
  for (const Marker::Mark& mark : marks) {
    if (mark.what != What::kContent || mark.is_end) continue;
    const bool begins = mark.is_seen, ends = (&mark + 1)->is_seen;
    ++num_pieces;
    num_seen += begins || ends;
    num_halves += begins != ends;
    last_is_seen = begins || ends;
  }
  if (num_pieces == 0) return std::nullopt;
  if (num_seen == 0) return What::kContent;
  if (num_seen < num_pieces) return last_is_seen ? What::kReasoning : What::kPartOfContent;
  if (num_halves > 0 && !is_whole()) return What::kPartOfContent;
  return std::nullopt;
}

bool loses_calls(Marks marks) {
  return std::any_of(marks.begin(), marks.end(),
                     [](const Marker::Mark& mark) { return mark.what == What::kToolCalls && !mark.is_seen; });
}

// Arguments are shown if the added one is, or if all of their own texts are. The marks of a call are those of its
// texts, followed by the added one.
bool loses_arguments(Marks marks) {
  size_t call = 0, num_texts = 0, num_seen = 0;
  for (const Marker::Mark& mark : marks) {
    if (mark.what != What::kArguments) continue;
    if (mark.piece != call) call = mark.piece, num_texts = num_seen = 0;
    if (mark.is_end) {
      ++num_texts;
      num_seen += mark.is_seen;
    } else if (!mark.is_seen && (num_texts == 0 || num_seen < num_texts)) {
      return true;
    }
  }
  return false;
}

bool is_python(Marks marks) { return std::any_of(marks.begin(), marks.end(), std::mem_fn(&Marker::Mark::is_python)); }

bool loses_tools(Marks marks) {
  return std::any_of(marks.begin(), marks.end(),
                     [](const Marker::Mark& mark) { return mark.what == What::kTools && !mark.is_seen; });
}

}  // namespace

std::vector<Omission> ChatCoverage::omissions(const ChatRecord& chat, const std::string& text) {
  const std::vector<std::string> kinds = kinds_of_messages(chat);
  const bool is_proven =
      std::all_of(kinds.begin(), kinds.end(), [&](const std::string& kind) { return proven_.contains(kind); });
  std::vector<Omission> found;
  if (!is_proven || !holds_all(chat, text)) {
    found = find(chat, text);
    if (found.empty()) {
      if (proven_.size() > kMaxProvenKinds) proven_.clear();
      proven_.insert(kinds.begin(), kinds.end());
    }
  }
  if (hidden_roles_.empty()) return found;
  for (size_t i = 0; i < chat.messages.size(); ++i)
    if (hidden_roles_.contains(chat.messages[i].role)) found.push_back({What::kRole, i});
  return found;
}

// Contents are in the order of the messages, but templates move system messages.
bool ChatCoverage::holds_all(const ChatRecord& chat, const std::string& text) {
  size_t cursor = 0;
  OrderedSearch moved(text);
  std::string joined;
  for (const Message& message : chat.messages) {
    const bool moves = message.role == "system" || message.role == "developer";
    const size_t begin = moves ? 0 : cursor;
    const auto holds_part = [&](std::string_view part) {
      part = trimmed_text(part);
      if (part.empty()) return true;
      if (moves) return moved.holds(part);
      const size_t at = text.find(part, cursor);
      if (at == std::string::npos) return message.role == "tool" && holds_value(text, std::string(part), cursor);
      cursor = at + part.size();
      return true;
    };
    if (message.content.size() == 1) {
      if (!holds_part(message.content[0].text)) return false;
    } else if (!message.content.empty()) {
      joined = message.text();
      const auto is_held = [&](const ContentPart& part) { return holds_part(part.text); };
      if (!holds_part(joined) && !std::all_of(message.content.begin(), message.content.end(), is_held)) return false;
    }
    if (!message.tool_calls_json.empty() && !holds_calls(text, message.tool_calls_json, begin)) return false;
  }
  if (chat.tools_json.empty()) return true;
  if (chat.tools_json != tools_json_) {
    tools_json_ = chat.tools_json;
    tool_names_ = names_of_tools(tools_json_);
  }
  return std::all_of(tool_names_.begin(), tool_names_.end(),
                     [&](const std::string& name) { return holds_value(text, name, 0); });
}

std::vector<Omission> ChatCoverage::find(const ChatRecord& chat, const std::string& text) {
  Marker marker(chat, text);
  ChatRecord marked = chat;
  for (size_t i = 0; i < chat.messages.size(); ++i) marker.mark_message(marked, i);
  marker.mark_tools(marked);
  const auto look = [&](const ChatRecord& other) {
    try {
      marker.look(renderer_.render_prepared(other, false, false).text);
      return true;
    } catch (const Error& error) {
      if (error.code() == ExitCode::kStopped) throw;
      return false;
    }
  };
  if (!look(marked)) {
    // Halves the marked messages until the template accepts their marks, or only one is left.
    size_t num_rendered = 0;
    std::vector<std::pair<size_t, size_t>> ranges{{0, chat.messages.size()}};
    while (!ranges.empty()) {
      const auto [begin, end] = ranges.back();
      ranges.pop_back();
      const size_t half = (end - begin + 1) / 2;
      for (const auto& [from, to] : {std::pair(begin, begin + half), std::pair(begin + half, end)}) {
        if (from == to) continue;
        num_rendered += chat.messages.size();
        if (num_rendered > kMaxRendered) throw too_many_refused(chat.messages.size());
        ChatRecord some = chat;
        std::copy(marked.messages.begin() + static_cast<int64_t>(from),
                  marked.messages.begin() + static_cast<int64_t>(to),
                  some.messages.begin() + static_cast<int64_t>(from));
        if (look(some)) continue;
        if (to - from == 1)
          marker.see_message(from);
        else
          ranges.emplace_back(from, to);
      }
    }
    ChatRecord one = chat;
    one.tools_json = marked.tools_json;
    if (!look(one)) marker.see_tools();
  }
  std::vector<Omission> found;
  OrderedSearch contents(text);
  bool holds_contents = true;  // until a content is missed, after which the row is refused
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Marks marks = marker.marks_of(i);
    const auto is_whole = [&] {
      return holds_contents = holds_contents && contents.holds(trimmed_text(chat.messages[i].text()));
    };
    if (const auto lost = lost_content(marks, is_whole)) found.push_back({*lost, i});
    if (loses_calls(marks))
      found.push_back({What::kToolCalls, i});
    else if (loses_arguments(marks))
      found.push_back({What::kArguments, i});
    else if (is_python(marks) || (marker.prints_python() && !chat.messages[i].tool_calls_json.empty()))
      found.push_back({What::kPython, i});
  }
  if (loses_tools(marker.marks_of_tools()))
    found.push_back({What::kTools, 0});
  else if (is_python(marker.marks_of_tools()))
    found.push_back({What::kPythonTools, 0});
  const bool is_hidden = std::any_of(found.begin(), found.end(),
                                     [](const Omission& omission) { return omission.what != What::kReasoning; });
  if (!is_hidden) find_hidden_roles(chat, text);
  return found;
}

void ChatCoverage::find_hidden_roles(const ChatRecord& chat, const std::string& text) {
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const std::string& role = chat.messages[i].role;
    if (shown_roles_.contains(role) || hidden_roles_.contains(role)) continue;
    ChatRecord other = chat;
    other.messages[i].role = role == "user" ? "assistant" : "user";
    bool is_shown = true;
    try {
      is_shown = renderer_.render_prepared(other, false, false).text != text;
    } catch (const Error& error) {  // the template refuses the other role, so this one matters
      if (error.code() == ExitCode::kStopped) throw;
    }
    (is_shown ? shown_roles_ : hidden_roles_).insert(role);
  }
}

}  // namespace chassis
