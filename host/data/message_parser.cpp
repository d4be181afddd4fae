// A message keeps what its row says; only tool calls are brought into one form, that of OpenAI with arguments as
// objects.
#include "host/data/message_parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/lower_case.hpp"
#include "host/base/printable.hpp"
#include "host/data/json_text.hpp"
#include "host/data/line_reader.hpp"
#include "host/data/row_names.hpp"

namespace chassis {
namespace {

constexpr std::string_view kFunctionCall = "function_call";

// The words of ShareGPT for roles.
const std::map<std::string, std::string, std::less<>>& sharegpt_roles() {
  static const std::map<std::string, std::string, std::less<>> kRoles{
      {"system", "system"},          {"human", "user"},          {"user", "user"},
      {"gpt", "assistant"},          {"assistant", "assistant"}, {"chatgpt", "assistant"},
      {"model", "assistant"},        {"observation", "tool"},    {"tool", "tool"},
      {"function_response", "tool"}, {"tool_response", "tool"},  {"function_call", "function_call"},
      {"tool_call", "function_call"}};
  return kRoles;
}

std::string index_path(const std::string& name, size_t index) { return fmt::format("{}[{}]", name, index); }

// Templates read tools and calls of tools by a parser with this limit.
constexpr int kMaxCallDepth = 64;

void require_depth(const RowPlace& place, const std::string& name, std::string_view json) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
    else if (!in_string && (c == '[' || c == '{') && ++depth > kMaxCallDepth)
      throw place.error(fmt::format("\"{}\" is nested deeper than {}", printable(name), kMaxCallDepth));
  }
}

// Leaves out members that are null.
void append_table_json(const RowPlace& place, const std::string& name, JsonElement value, std::string& out) {
  JsonArray list;
  JsonObject object;
  const char* separator = "";
  if (!value.get(list)) {
    out += '[';
    for (const JsonElement item : list) {
      out += std::exchange(separator, ",");
      append_table_json(place, name + "[]", item, out);
    }
    out += ']';
  } else if (!value.get(object)) {
    out += '{';
    for (const auto [key, member] : object) {
      const std::string path = fmt::format("{}.{}", name, key);
      if (member.is_null()) {
        place.note_null(path);
        continue;
      }
      out += std::exchange(separator, ",");
      append_json_string(out, key);
      out += ':';
      append_table_json(place, path, member, out);
    }
    out += '}';
  } else {
    out += json_line_of(value, place.has_wide_integers());
  }
}

// The text of a JSON value, whose strings are UTF-8.
std::string json_text(const RowPlace& place, const std::string& name, JsonElement value) {
  std::string text;
  if (place.is_table())
    append_table_json(place, name, value, text);
  else
    text = json_line_of(value, place.has_wide_integers());
  if (!simdjson::validate_utf8(text.data(), text.size()))
    throw place.error(fmt::format("\"{}\" has an escape such as \\ud800 that is not a character", printable(name)));
  return text;
}

void append_member(std::string& object, std::string_view key, std::string_view json) {
  if (object.back() != '{') object += ',';
  append_json_string(object, key);
  object += ':';
  object += json;
}

}  // namespace

Message text_message(std::string role, std::string_view text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({std::string(text), std::nullopt});
  return message;
}

void add_system(const RowPlace& place, const std::string& name, std::string_view text, std::vector<Message>& messages) {
  if (text.empty()) return;
  if (messages.empty() || messages.front().role != "system") {
    messages.insert(messages.begin(), text_message("system", text));
  } else if (messages.front().text() != text) {
    throw place.error(fmt::format("\"{}\" is not the system message with which the conversation begins", name))
        .hint("keep one of them");
  }
}

MessageParser::MessageParser(const DataSetConfig& config, MessageStyle style) : style_(style) {
  std::map<std::string, std::string> tags = config.tags;
  if (style == MessageStyle::kShareGpt) {
    tags.emplace("role", "from");
    tags.emplace("content", "value");
    roles_ = sharegpt_roles();
  }
  std::map<std::string, std::string> keys;
  for (const auto& [name, word] : tags) {
    const bool is_role =
        name == "user" || name == "assistant" || name == "system" || name == "tool" || name == kFunctionCall;
    if (is_role)
      roles_[word] = name;
    else
      keys[name] = word;
  }
  std::vector<std::string_view> names{"role", "content", "tool_calls", "tool_call_id", "name", "train", "weight"};
  if (style == MessageStyle::kOpenAi) names.push_back(kFunctionCall);  // before there were tool_calls
  // Three names are in use for reasoning.
  if (keys.contains("reasoning"))
    names.push_back("reasoning");
  else
    names.insert(names.end(), {"reasoning_content", "reasoning", "thinking"});
  keys_ = renamed_keys(names, keys);
}

bool MessageParser::fits(JsonObject message) const {
  const auto has = [&](std::string_view name) {
    const auto key = std::find_if(keys_.begin(), keys_.end(), [&](const auto& item) { return item.first == name; });
    return key != keys_.end() && message.at_key(key->second).error() == simdjson::SUCCESS;
  };
  return has("role") && (has("content") || has("tool_calls"));
}

std::vector<Message> MessageParser::messages(const RowPlace& place, const std::string& name, JsonElement value) {
  std::vector<Message> messages;
  for (const JsonElement item : place.list(name, value))
    messages.push_back(message(place, index_path(name, messages.size()), item));
  return messages;
}

std::vector<Message> MessageParser::messages_or_text(const RowPlace& place, const std::string& name,
                                                     JsonElement value) {
  if (!value.is_string()) return messages(place, name, value);
  const std::string_view text = place.string(name, value);
  if (is_blank(text)) return {};
  return messages(place, name, parsed(place, name, text, list_parser_));
}

Message MessageParser::message(const RowPlace& place, const std::string& name, JsonElement value) {
  const RowFields fields(place, place.object(name, value), keys_, name + ".");
  Message message;
  message.role = role(fields);
  message.train = trained(fields);
  message.name = fields.string_or_empty("name");
  message.tool_call_id = fields.string_or_empty("tool_call_id");
  message.reasoning = reasoning(fields);
  if (message.role == kFunctionCall) {
    read_function_call(fields, message);
    return message;
  }
  read_content(fields, message);
  if (const auto calls = fields.find("tool_calls"))
    message.tool_calls_json = tool_calls(place, fields.path("tool_calls"), *calls);
  if (const auto call = fields.find(kFunctionCall)) read_old_call(fields, *call, message);
  if (!message.has_content && message.tool_calls_json.empty()) {
    throw place
        .error(fmt::format("{} has neither \"{}\" nor tool calls", printable(name),
                           printable(fields.path("content").substr(name.size() + 1))))
        .hint("another name is given by tags = { content = \"…\" }");
  }
  return message;
}

std::string MessageParser::role(const RowFields& fields) const {
  const std::optional<JsonElement> value = fields.find("role");
  if (!value) {
    Error error = fields.place().error(fmt::format("\"{}\" is missing", printable(fields.path("role"))));
    const std::string_view other = style_ == MessageStyle::kShareGpt ? "role" : "from";
    if (fields.object().at_key(other).error() == simdjson::SUCCESS) {
      const std::string_view format = style_ == MessageStyle::kShareGpt ? "messages" : "sharegpt";
      const std::string_view column = style_ == MessageStyle::kShareGpt ? "messages" : "conversations";
      throw error.hint(
          fmt::format("the message looks like format \"{0}\": set format = \"{0}\", and columns = {{ {1} = "
                      "\"…\" }} if the list has another name",
                      format, column));
    }
    throw error.hint("another name is given by tags = { role = \"…\" }");
  }
  const std::string_view word = fields.place().string(fields.path("role"), *value);
  if (const auto known = roles_.find(word); known != roles_.end()) return known->second;
  if (style_ == MessageStyle::kOpenAi && word == "function") return "tool";  // as old rows of OpenAI name it
  const auto alias = sharegpt_roles().find(lower_case(word));
  const bool is_alias = alias != sharegpt_roles().end() && alias->second != word;
  if (style_ == MessageStyle::kOpenAi && !word.empty() && !is_alias) return std::string(word);
  const std::string tags = is_alias ? fmt::format("tags, such as {{ {} = \"{}\" }}", alias->second, printable(word))
                                    : fmt::format(
                                          "tags, such as {{ user = \"{0}\" }} or {{ assistant = \"{0}\" }}, "
                                          "whichever it is",
                                          printable(word));
  throw fields.place()
      .error(fmt::format("\"{}\" is \"{}\", not a role", printable(fields.path("role")), printable(word)))
      .hint(fmt::format("name it by {}; roles are system, user, assistant, tool and function_call", tags));
}

void MessageParser::read_content(const RowFields& fields, Message& message) const {
  const std::optional<JsonElement> value = fields.find("content");
  message.has_content = value.has_value();
  message.content_is_null = fields.is_null("content");
  if (!value) return;
  JsonArray parts;
  if (!value->get(parts)) return read_parts(fields, parts, message);
  const std::string path = fields.path("content");
  if (!value->is_string()) throw fields.place().type_error(path, *value, "a string or a list of parts");
  message.content.push_back({std::string(fields.place().string(path, *value)), std::nullopt});
}

void MessageParser::read_parts(const RowFields& fields, JsonArray parts, Message& message) const {
  static const KeyNames kKeys{{"type", "type"}, {"text", "text"}, {"train", "train"}};
  const RowPlace& place = fields.place();
  message.content_is_parts = true;
  for (const JsonElement item : parts) {
    const std::string name = index_path(fields.path("content"), message.content.size());
    const RowFields part(place, place.object(name, item), kKeys, name + ".");
    const std::string_view type = part.string_or_empty("type");
    const std::optional<JsonElement> text = part.find("text");
    if (type != "text" || !text) {
      throw place.error(type == "text" ? fmt::format("\"{}\" is missing", printable(part.path("text")))
                                       : fmt::format("\"{}\" is \"{}\"; only parts with type \"text\" are read",
                                                     printable(part.path("type")), printable(type)));
    }
    ContentPart content{std::string(place.string(part.path("text"), *text)), std::nullopt};
    if (const auto train = part.find("train")) content.train = place.boolean(part.path("train"), *train);
    message.content.push_back(std::move(content));
  }
}

std::string MessageParser::reasoning(const RowFields& fields) const {
  std::string_view found, found_key;
  for (const std::string_view key : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string_view text = fields.string_or_empty(key);
    if (text.empty()) continue;
    if (!found.empty() && found != text) {
      throw fields.place()
          .error(fmt::format("\"{}\" and \"{}\" differ: which is the reasoning?", printable(fields.path(found_key)),
                             printable(fields.path(key))))
          .hint("choose one by tags = { reasoning = \"…\" }");
    }
    found = text;
    found_key = key;
  }
  return std::string(found);
}

// weight is OpenAI's: 0 leaves a message of the assistant out, 1 is the same as no weight.
std::optional<bool> MessageParser::trained(const RowFields& fields) const {
  std::optional<bool> trained;
  if (const auto train = fields.find("train")) trained = fields.place().boolean(fields.path("train"), *train);
  if (const auto weight = fields.find("weight")) {
    const double number = fields.place().number(fields.path("weight"), *weight);
    if (number != 0 && number != 1) {
      throw fields.place()
          .error(fmt::format("\"{}\" is {}; only 0 and 1 can be used", printable(fields.path("weight")), number))
          .hint("leave a message out of training by train = false");
    }
    if (number == 0 && trained == true) {
      throw fields.place().error(fmt::format("\"{}\" is true, but \"{}\" is 0", printable(fields.path("train")),
                                             printable(fields.path("weight"))));
    }
    if (number == 0) trained = false;
  }
  return trained;
}

// ShareGPT's calls are messages of their own, whose text is the JSON of a call or of a list of calls.
void MessageParser::read_function_call(const RowFields& fields, Message& message) {
  const std::string path = fields.path("content");
  const std::optional<JsonElement> content = fields.find("content");
  if (!content) throw fields.place().error(fmt::format("\"{}\" is missing", printable(path)));
  JsonElement calls = *content;
  const RowPlace place = calls.is_string() ? fields.place().inside_text() : fields.place();
  if (calls.is_string()) calls = parsed(place, path, place.string(path, calls), text_parser_);
  message.role = "assistant";
  message.has_content = false;
  message.tool_calls_json =
      calls.is_array() ? tool_calls(place, path, calls) : "[" + tool_call(place, path, calls) + "]";
  require_depth(place, path, message.tool_calls_json);
  if (message.tool_calls_json.empty()) throw place.error(fmt::format("\"{}\" has no call", printable(path)));
}

// OpenAI's call before there were tool_calls: {"name", "arguments"}.
void MessageParser::read_old_call(const RowFields& fields, JsonElement call, Message& message) {
  const RowPlace& place = fields.place();
  const std::string path = fields.path(kFunctionCall);
  if (!message.tool_calls_json.empty())
    throw place.error(fmt::format("\"{}\" and \"{}\" are both there: which are the calls?",
                                  printable(fields.path("tool_calls")), printable(path)));
  if (call.is_string()) call = parsed(place, path, place.string(path, call), text_parser_);
  message.tool_calls_json = "[" + tool_call(place, path, call) + "]";
  require_depth(place, path, message.tool_calls_json);
}

JsonElement MessageParser::parsed(const RowPlace& place, const std::string& name, std::string_view text,
                                  simdjson::dom::parser& parser) const {
  JsonElement value;
  if (const auto code = parse_with_wide_integers(parser, text, place, value)) {
    throw place.error(fmt::format("the string \"{}\" is not JSON: {}: {}", printable(name),
                                  simdjson::error_message(code), printable(text, 60)));
  }
  if (const std::string key = key_that_occurs_twice(value); !key.empty())
    throw place.error(fmt::format("key \"{}\" occurs twice in the string \"{}\"", printable(key), printable(name)));
  return value;
}

std::string MessageParser::tools(const RowPlace& row, const std::string& name, JsonElement value) {
  const RowPlace place = value.is_string() ? row.inside_text() : row;
  if (value.is_string()) {
    const std::string_view text = place.string(name, value);
    if (is_blank(text)) return "";
    value = parsed(place, name, text, text_parser_);
    if (value.is_null()) return "";
  }
  const JsonArray list = place.list(name, value);
  size_t index = 0;
  for (const JsonElement tool : list) place.object(index_path(name, index++), tool);
  return index == 0 ? "" : json_text(place, name, value);
}

std::string MessageParser::tool_calls(const RowPlace& row, const std::string& name, JsonElement value) {
  const RowPlace place = value.is_string() ? row.inside_text() : row;
  if (value.is_string()) value = parsed(place, name, place.string(name, value), text_parser_);
  std::string text = "[";
  size_t index = 0;
  for (const JsonElement call : place.list(name, value)) {
    if (index > 0) text += ',';
    text += tool_call(place, index_path(name, index), call);
    ++index;
  }
  require_depth(place, name, text);
  return index == 0 ? "" : text + "]";
}

// Either {"id", "type", "function": {"name", "arguments"}}, or the latter two without the function around them.
std::string MessageParser::tool_call(const RowPlace& place, const std::string& name, JsonElement value) {
  const JsonObject call = place.object(name, value);
  JsonElement inner;
  const bool is_flat = call.at_key("function").get(inner) || inner.is_null();
  std::string text = "{";
  for (const auto [key, member] : call) {
    if (member.is_null() || key == "function" || (is_flat && key != "id")) continue;
    append_member(text, key, json_text(place, fmt::format("{}.{}", name, key), member));
  }
  const std::string path = is_flat ? name : name + ".function";
  if (is_flat) append_member(text, "type", "\"function\"");
  append_member(text, "function", function(place, path, is_flat ? call : place.object(path, inner), is_flat));
  return text + "}";
}

std::string MessageParser::function(const RowPlace& place, const std::string& name, JsonObject value, bool is_flat) {
  std::string text = "{";
  bool has_name = false, has_arguments = false;
  for (const auto [key, member] : value) {
    if (member.is_null() || (is_flat && (key == "id" || key == "type"))) continue;
    const std::string path = fmt::format("{}.{}", name, key);
    if ((key == "name" && has_name) || (key == "arguments" && has_arguments))
      throw place.error(fmt::format("key \"{}\" occurs twice", printable(path)));
    if (key == "name") has_name = !place.string(path, member).empty();
    if (key == "arguments") has_arguments = true;
    append_member(text, key, key == "arguments" ? arguments(place, path, member) : json_text(place, path, member));
  }
  if (!has_name) throw place.error(fmt::format("\"{}\" has no name of a function", printable(name)));
  if (!has_arguments) append_member(text, "arguments", "{}");
  return text + "}";
}

std::string MessageParser::arguments(const RowPlace& row, const std::string& name, JsonElement value) {
  const RowPlace place = value.is_string() ? row.inside_text() : row;
  if (value.is_string()) {
    const std::string_view text = place.string(name, value);
    if (is_blank(text)) return "{}";
    value = parsed(place, name, text, arguments_parser_);
  }
  place.object(name, value);
  return json_text(place, name, value);
}

}  // namespace chassis
