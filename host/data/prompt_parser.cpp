// Each of the names for prompts is in use by some well-known data sets.
#include "host/data/prompt_parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/dialogue_text.hpp"
#include "host/data/missing_key.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

// ColossalAI's messages: {"from", "content"}.
DataSetConfig colossal_config(DataSetConfig config) {
  config.tags.emplace("content", "content");
  return config;
}

bool is_empty_text(JsonElement value) {
  std::string_view text;
  return !value.get(text) && text.empty();
}

}  // namespace

PromptParser::PromptParser(const DataSetConfig& config)
    : format_(config.format),
      open_ai_(config, MessageStyle::kOpenAi),
      sharegpt_(config, MessageStyle::kShareGpt),
      colossal_(colossal_config(config), MessageStyle::kShareGpt) {}

MessageParser& PromptParser::parser_of(JsonElement message) {
  JsonObject object;
  if (message.get(object) || open_ai_.fits(object)) return open_ai_;
  return sharegpt_.fits(object) ? sharegpt_ : colossal_.fits(object) ? colossal_ : open_ai_;
}

Messages PromptParser::messages(const RowFields& row, std::string_view name, JsonElement value, std::string_view role) {
  const RowPlace& place = row.place();
  const std::string path = row.path(name);
  JsonArray list;
  if (!value.get(list)) {
    if (list.begin() == list.end()) return {};
    return parser_of(list.at(0)).messages(place, path, value);
  }
  if (value.is_object()) return {parser_of(value).message(place, path, value)};
  if (!value.is_string()) throw place.type_error(path, value, "a text, a message or a list of messages");
  return {text_message(std::string(role), place.string(path, value))};
}

Prompt PromptParser::read(const RowFields& row, std::string_view name, JsonElement value) {
  const RowPlace& place = row.place();
  Prompt prompt{.key = row.path(name)};
  if (name == "instruction") {
    prompt.is_text = true;
    if (const auto history = row.find("history")) add_history(place, row.path("history"), *history, prompt.messages);
    const std::string_view text = place.string(prompt.key, value);
    prompt.messages.push_back(text_message("user", instruction_text(text, row.string_or_empty("input"))));
    return prompt;
  }
  if (name == "input") place.string(prompt.key, value);
  prompt.messages = messages(row, name, value, "user");
  if (!value.is_string()) return prompt;
  prompt.is_text = true;
  const std::string text = prompt.messages.back().text();
  if (!is_dialogue_text(text)) return prompt;
  prompt.is_text = false;
  prompt.messages = dialogue_messages(text);
  const Message& last = prompt.messages.back();
  if (last.role == "assistant" && last.text().empty()) prompt.messages.pop_back();  // the header of the answer
  return prompt;
}

Prompt PromptParser::prompt(const RowFields& row, const Messages& whole) {
  constexpr std::array<std::string_view, 5> kNames{"prompt", "instruction", "input", "conversations", "messages"};
  const RowPlace& place = row.place();
  Prompt found;
  std::string_view found_name, empty_name;
  for (const std::string_view name : kNames) {
    const std::optional<JsonElement> value = row.find(name);
    if (!value || (name == "input" && found_name == "instruction")) continue;
    if (is_empty_text(*value)) {
      if (empty_name.empty() && name != "input") empty_name = name;
      continue;
    }
    Prompt prompt = read(row, name, *value);
    if (!whole.empty() && value->is_array() && prompt.messages == whole) {
      place.note_unused(prompt.key);
      continue;
    }
    if (!found_name.empty()) {
      throw place
          .error(fmt::format("\"{}\" and \"{}\" are both there: which comes before the answers?", printable(found.key),
                             printable(prompt.key)))
          .hint("remove one of them, or give it another name");
    }
    found = std::move(prompt);
    found_name = name;
  }
  if (found_name.empty() && !empty_name.empty()) {
    found_name = empty_name;
    found = read(row, empty_name, *row.find(empty_name));
  }
  if (found_name != "instruction" && row.find("history")) place.note_unused(row.path("history"));
  return found;
}

ChatRecord PromptParser::answered(const RowFields& row) {
  const std::optional<JsonElement> completion = row.find("completion");
  Prompt prompt = this->prompt(row);
  std::string_view answer_name = "completion";
  Messages answer;
  if (completion) {
    answer = messages(row, "completion", *completion, "assistant");
    if (!prompt.messages.empty()) remove_prompt(row, "completion", prompt, answer);
  } else {
    if (prompt.is_text || prompt.messages.empty()) throw missing_key_error(format_, row, "completion");
    answer_name = "messages";
    if (prompt.messages.back().role != "assistant") {
      throw row.place()
          .error(fmt::format("the last message of \"{}\" is of \"{}\", and an answer is the assistant's",
                             printable(prompt.key), printable(prompt.messages.back().role)))
          .hint("add the answer to the list, or as \"completion\"");
    }
    answer.push_back(std::move(prompt.messages.back()));
    prompt.messages.pop_back();
  }
  if (prompt.messages.empty())
    throw row.place().error("no message comes before the answer").hint("add a prompt to the row");
  return chat(row, answer_name, std::move(prompt.messages), std::move(answer));
}

size_t end_of_prompt(const Prompt& prompt, const Messages& list) {
  if (prompt.messages.empty() || list.empty()) return 0;
  const auto last = list.end() - 1;
  const auto begin = std::search(list.begin(), last, prompt.messages.begin(), prompt.messages.end());
  const bool is_at_front = begin == list.begin() || (begin == list.begin() + 1 && list.front().role == "system");
  if (begin == last || !is_at_front) return 0;
  return static_cast<size_t>(begin - list.begin()) + prompt.messages.size();
}

void PromptParser::remove_prompt(const RowFields& row, std::string_view name, const Prompt& prompt,
                                 Messages& answer) const {
  if (answer.empty() || answer.front().role == "assistant") return;
  const size_t end = end_of_prompt(prompt, answer);
  if (end == 0) {
    throw row.place()
        .error(fmt::format("\"{}\" begins with neither the prompt nor an answer", printable(row.path(name))))
        .hint("leave out the prompt if the list is a whole conversation");
  }
  answer.erase(answer.begin(), answer.begin() + static_cast<ptrdiff_t>(end));
}

ChatRecord PromptParser::chat(const RowFields& row, std::string_view name, Messages prompt, Messages answer) {
  const RowPlace& place = row.place();
  if (answer.empty()) throw place.error(fmt::format("\"{}\" has no message", printable(row.path(name))));
  add_system(place, row.path("system"), row.string_or_empty("system"), prompt);
  ChatRecord chat;
  chat.messages = std::move(prompt);
  chat.first_trained = chat.messages.size();
  std::move(answer.begin(), answer.end(), std::back_inserter(chat.messages));
  if (const auto tools = row.find("tools")) chat.tools_json = open_ai_.tools(place, row.path("tools"), *tools);
  return chat;
}

}  // namespace chassis
