// Jinja templates get the variables that HF passes; features that HF does not have, such as reasoning kept in every
// turn, are implemented by changing the messages.
#include "host/data/chat_renderer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <mutex>
#include <utility>

#include "host/base/hash.hpp"
#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/wide_integers.hpp"

namespace chassis {
namespace {

std::string names_of_slots(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", name);
  return text;
}

Message plain_message(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({std::move(text), std::nullopt});
  return message;
}

// The templates of Qwen and GLM have switches that keep the reasoning of earlier turns. Other templates ignore them.
std::string with_reasoning_kept(const std::string& variables_json) {
  Json variables = variables_json.empty() ? Json::object() : parse_json(variables_json, "template variables");
  if (!variables.contains("preserve_thinking")) variables["preserve_thinking"] = true;
  if (!variables.contains("clear_thinking")) variables["clear_thinking"] = false;
  return variables.dump();
}

// If a part says whether it is trained, the template gets all parts as one text.
bool has_parts(const Message& message) {
  return message.content_is_parts && std::none_of(message.content.begin(), message.content.end(),
                                                  [](const ContentPart& part) { return part.train.has_value(); });
}

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// True if a template prints a list of parts as Python or JSON spells it, instead of the texts of the parts.
bool prints_list(const std::string& of_parts, const std::string& of_texts) {
  for (const std::string_view key : {"'type': 'text'", "\"type\": \"text\"", "\"type\":\"text\""})
    if (count_of(of_parts, key) > count_of(of_texts, key)) return true;
  return false;
}

}  // namespace

struct ChatRenderer::PartsOfRoles {
  std::mutex mutex;
  std::map<std::string, bool> is_read;  // by role
};

std::string messages_json(const std::vector<Message>& messages,
                          const std::function<bool(const Message&)>& keeps_parts) {
  Json list = Json::array();
  bool has_wide_integers = false;
  for (const Message& message : messages) {
    Json item;
    item["role"] = message.role;
    if (!message.has_content) {
      item["content"] = nullptr;
    } else if (has_parts(message) && keeps_parts && keeps_parts(message)) {
      item["content"] = Json::array();
      for (const ContentPart& part : message.content) {
        Json object;
        object["type"] = "text";
        object["text"] = part.text;
        item["content"].push_back(std::move(object));
      }
    } else {
      item["content"] = message.text();
    }
    if (!message.reasoning.empty()) item["reasoning_content"] = message.reasoning;
    if (!message.tool_calls_json.empty()) {
      bool found = false;
      item["tool_calls"] = parse_json(mark_wide_integers(message.tool_calls_json, found), "tool_calls");
      has_wide_integers |= found;
    }
    if (!message.tool_call_id.empty()) item["tool_call_id"] = message.tool_call_id;
    if (!message.name.empty()) item["name"] = message.name;
    list.push_back(std::move(item));
  }
  return has_wide_integers ? unmark_wide_integers(list.dump()) : list.dump();
}

int64_t unix_time_of_date(const std::string& date) {
  std::tm time{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &time);
  const std::tm asked = time;
  const int64_t seconds = timegm(&time);
  if (date.size() != 10 || end != date.c_str() + date.size() || time.tm_mday != asked.tm_mday)
    throw config_error(fmt::format("\"{}\" is not a date: expected YYYY-MM-DD", printable(date)));
  return seconds;
}

int32_t spelled_token(const Tokenizer& tokenizer, const std::string& text) {
  if (text.empty()) return -1;
  const int32_t id = tokenizer.id_of(text);
  std::vector<int32_t> ids;
  if (id >= 0) tokenizer.encode(text, ids);
  return ids == std::vector<int32_t>{id} ? id : -1;
}

std::string take_inline_reasoning(std::string& content) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const size_t close = content.find(kClose);
  if (!content.starts_with(kOpen) || close == std::string::npos) return "";
  std::string reasoning = content.substr(kOpen.size(), close - kOpen.size());
  content.erase(0, std::min(content.find_first_not_of('\n', close + kClose.size()), content.size()));
  return reasoning;
}

ChatRenderer::ChatRenderer(const Tokenizer& tokenizer, ChatConfig config)
    : tokenizer_(tokenizer),
      config_(std::move(config)),
      variables_json_(config_.variables_json),
      parts_(std::make_shared<PartsOfRoles>()) {
  if (tokenizer.bos_id() >= 0) tokens_.bos = tokenizer.token(tokenizer.bos_id()).text;
  if (tokenizer.eos_id() >= 0) tokens_.eos = tokenizer.token(tokenizer.eos_id()).text;
  name_ = config_.slots                   ? "template " + config_.slots->name
          : config_.template_text.empty() ? "the tokenizer's chat template"
                                          : "template " + config_.template_name;
  if (config_.reasoning == Reasoning::kKeep) variables_json_ = with_reasoning_kept(variables_json_);
  unix_time_s_ =
      config_.date.empty()
          ? std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                .count()
          : unix_time_of_date(config_.date);
  require_template();
  set_default_system();
  find_stop_ids();
  find_generation_prompt();
}

void ChatRenderer::require_template() const {
  if (!is_jinja() || !config_.template_text.empty() || !tokenizer_.chat_template().empty()) return;
  throw config_error("the tokenizer has no chat template, so conversations cannot become text")
      .hint(config_.fitting_slots.empty()
                ? "no built-in template fits this tokenizer; data.template takes a .toml or .jinja file"
                : fmt::format("set data.template = \"NAME\": {} fit this tokenizer",
                              names_of_slots(config_.fitting_slots)));
}

void ChatRenderer::find_stop_ids() {
  const auto add = [&](int32_t id) {
    if (id >= 0 && std::find(stop_ids_.begin(), stop_ids_.end(), id) == stop_ids_.end()) stop_ids_.push_back(id);
  };
  for (const int32_t id : config_.stop_ids) add(id);
  add(tokenizer_.eos_id());
  if (!config_.slots) return;
  for (const TextSlot& stop : config_.slots->stop) {
    std::string text;
    for (const TextSlot::Piece& piece : stop.pieces)
      text += piece.text + (piece.placeholder == "eos" ? tokens_.eos : "");
    const int32_t id = spelled_token(tokenizer_, text);
    if (id < 0) {
      Error error = config_error(
          text.empty() ? fmt::format("{} ends answers in EOS, which the tokenizer does not have", name_)
          : tokenizer_.id_of(text) < 0
              ? fmt::format("{} ends answers in {}, which is not a token of the tokenizer", name_, printable(text))
              : fmt::format("{} ends answers in {}, which this tokenizer does not read as a token in a text", name_,
                            printable(text)));
      if (!config_.fitting_slots.empty())
        error.hint("templates that fit this tokenizer: " + names_of_slots(config_.fitting_slots));
      throw error;
    }
    add(id);
  }
}

void ChatRenderer::find_generation_prompt() {
  ChatRecord chat;
  chat.messages.push_back(plain_message("user", "x"));
  try {
    const std::string without = render(chat, false, false).text, with = render(chat, false, true).text;
    if (!with.starts_with(without)) return;
    generation_prompt_ = with.substr(without.size());
    chat.messages.push_back(plain_message("assistant", "y"));
    const std::string row = render(chat, false, false).text;
    if (row.starts_with(with) || !row.starts_with(without)) return;
    other_begin_ = row.substr(without.size());
    if (const size_t answer = other_begin_.rfind('y'); answer != std::string::npos) other_begin_.resize(answer + 1);
  } catch (const Error&) {  // a template that refuses this conversation says so at a row of the data
  }
}

void ChatRenderer::set_default_system() {
  if (!config_.slots || config_.default_system.empty()) return;
  if (!config_.slots->system)
    throw config_error(name_ + " has no system messages, so data.default_system cannot be used");
  auto slots = std::make_shared<SlotTemplate>(*config_.slots);
  slots->default_system = config_.default_system;
  config_.slots = std::move(slots);
}

ChatRecord ChatRenderer::prepared(const ChatRecord& chat) const {
  ChatRecord copy = chat;
  if (config_.reasoning == Reasoning::kStrip) {
    for (Message& message : copy.messages) {
      if (message.role != "assistant") continue;
      message.reasoning.clear();
      if (!message.content.empty()) take_inline_reasoning(message.content.front().text);
    }
  }
  if (adds_system(chat)) {
    copy.messages.insert(copy.messages.begin(), plain_message("system", config_.default_system));
  }
  return copy;
}

bool ChatRenderer::adds_system(const ChatRecord& chat) const {
  const bool has_system = !chat.messages.empty() && chat.messages.front().role == "system";
  return is_jinja() && !config_.default_system.empty() && !has_system;
}

RenderedChat ChatRenderer::render(const ChatRecord& chat, bool spans, bool generation_prompt) const {
  if (!changes(chat)) return render_prepared(chat, spans, generation_prompt);
  RenderedChat rendered = render_prepared(prepared(chat), spans, generation_prompt);
  if (adds_system(chat)) {
    std::erase_if(rendered.spans, [](const ChatSpan& span) { return span.message == 0; });
    for (ChatSpan& span : rendered.spans) --span.message;
  }
  return rendered;
}

RenderedChat ChatRenderer::render_prepared(const ChatRecord& chat, bool spans, bool generation_prompt) const {
  if (config_.slots)
    return render_slots(*config_.slots, tokens_,
                        {.messages = chat.messages,
                         .tools_json = chat.tools_json,
                         .keep_reasoning = config_.reasoning == Reasoning::kKeep,
                         .generation_prompt = generation_prompt});
  if (std::none_of(chat.messages.begin(), chat.messages.end(), has_parts))
    return render_jinja(chat, {}, spans, generation_prompt);
  const auto keeps_parts = [&](const Message& message) { return takes_parts(chat, message.role); };
  return render_jinja(chat, keeps_parts, spans, generation_prompt);
}

// Some templates read lists of parts, possibly only for some roles; others print the list, or fail. The first
// conversation with parts in a role decides.
bool ChatRenderer::takes_parts(const ChatRecord& chat, const std::string& role) const {
  {
    const std::lock_guard lock(parts_->mutex);
    if (const auto known = parts_->is_read.find(role); known != parts_->is_read.end()) return known->second;
  }
  ChatRecord marked = chat;
  std::vector<std::string> words;
  for (Message& message : marked.messages) {
    if (message.role != role || !has_parts(message)) continue;
    for (ContentPart& part : message.content) {
      words.push_back(fmt::format("qzparts{}x", words.size()));
      part.text += words.back();
    }
  }
  const std::string joined = render_jinja(marked, {}, false, false).text;  // if this is refused, so is the row
  bool is_read = false;
  try {
    const auto of_role = [&](const Message& message) { return message.role == role; };
    const std::string text = render_jinja(marked, of_role, false, false).text;
    is_read = !prints_list(text, joined) && std::all_of(words.begin(), words.end(), [&](const std::string& word) {
      return text.find(word) != std::string::npos;
    });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kStopped) throw;
  }
  const std::lock_guard lock(parts_->mutex);
  parts_->is_read.emplace(role, is_read);
  return is_read;
}

RenderedChat ChatRenderer::render_jinja(const ChatRecord& chat, const std::function<bool(const Message&)>& keeps_parts,
                                        bool spans, bool generation_prompt) const {
  try {
    return tokenizer_.render({.messages_json = messages_json(chat.messages, keeps_parts),
                              .tools_json = chat.tools_json,
                              .variables_json = variables_json_,
                              .template_text = config_.template_text,
                              .unix_time_s = unix_time_s_,
                              .generation_prompt = generation_prompt,
                              .spans = spans});
  } catch (const Error& error) {
    const auto without = std::ranges::find(chat.messages, false, &Message::has_content);
    if (without == chat.messages.end() || error.code() == ExitCode::kStopped) throw;
    ChatRecord filled = chat;
    for (Message& message : filled.messages) message.has_content = true;
    bool is_cause = true;
    try {
      render_jinja(filled, keeps_parts, spans, generation_prompt);
    } catch (const Error&) {
      is_cause = false;
    }
    if (!is_cause) throw;
    throw Error(error.code(), error.where(), error.message())
        .hint(fmt::format("message {} ({}) has no content, or null, which a template sees as undefined, and "
                          "this one reads it: write \"content\": \"\"",
                          without - chat.messages.begin() + 1, printable(without->role, 40)));
  }
}

Json ChatRenderer::key() const {
  Json key;
  key["template"] = config_.template_name;
  const std::string text = config_.template_text.empty() ? tokenizer_.chat_template() : config_.template_text;
  key["template_text"] = config_.slots ? config_.slots->source_hash : sha256_hex(text).substr(0, 16);
  key["variables"] = config_.variables_json;
  // A change of the date does not matter to a template that shows none.
  if (is_jinja() && text.find("strftime_now") != std::string::npos) key["date"] = config_.date;
  key["default_system"] = config_.default_system;
  key["reasoning"] = to_text(config_.reasoning);
  key["stop_ids"] = stop_ids_;
  return key;
}

}  // namespace chassis
