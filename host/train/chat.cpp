// Renders the whole conversation for each turn, since templates may change earlier turns.
#include "host/train/chat.hpp"

#include <algorithm>
#include <utility>

namespace chassis {
namespace {

Message message_of(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({.text = std::move(text), .train = {}});
  return message;
}

}  // namespace

ChatPrompts chat_prompts(const Session&) { throw config_error("the tokenizer has no chat template"); }

void use_stop_ids(Answerer& answerer, const ChatPrompts& prompts) {
  std::vector<int32_t>& ids = answerer.options().stop_ids;
  for (const int32_t id : prompts.stop_ids)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

Chat::Chat(Answerer& answerer, ChatPrompts prompts) : answerer_(answerer), prompts_(std::move(prompts)) {
  use_stop_ids(answerer_, prompts_);
}

Answer Chat::say(const std::string& user, const OnText& on_text) {
  ChatRecord next = chat_;
  next.messages.push_back(message_of("user", user));
  const std::vector<int32_t> ids = answerer_.ids_of_chat(prompts_.render(next));
  Answer answer = answerer_.answer(ids, "chat/" + std::to_string(num_answers_++), on_text, &cached_);
  next.messages.push_back(message_of("assistant", answer.text));
  chat_ = std::move(next);
  return answer;
}

void Chat::reset() {
  std::erase_if(chat_.messages, [](const Message& message) { return message.role != "system"; });
}

void Chat::set_system(const std::string& text) {
  chat_.messages.clear();
  if (!text.empty()) chat_.messages.push_back(message_of("system", text));
}

}  // namespace chassis
