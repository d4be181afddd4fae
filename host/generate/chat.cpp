// Renders the whole conversation for each turn, since templates may change earlier turns.
#include "host/generate/chat.hpp"

#include <utility>

#include "host/text/run_chat.hpp"

namespace chassis {
namespace {

Message turn(std::string role, std::string text) {
  Message message;
  message.role = std::move(role);
  message.content.push_back({.text = std::move(text), .train = {}});
  return message;
}

}  // namespace
ChatRenderer chat_renderer(const Session& session) {
  const Settings& settings = session.settings();
  ChatConfig config = chat_config(settings, session.tokenizer());
  try {
    return ChatRenderer(*session.tokenizer(), std::move(config));
  } catch (const Error& error) {
    throw error_at(settings.data.template_name, error);
  }
}

ChatRecord user_turn(const std::string& text) {
  ChatRecord chat;
  chat.messages.push_back(turn("user", text));
  return chat;
}

std::vector<int32_t> ids_of_chat(const Answerer& answerer, const ChatRenderer& renderer, const ChatRecord& chat) {
  std::vector<int32_t> ids;
  answerer.tokenizer().encode(renderer.render(chat, /*spans=*/false, /*generation_prompt=*/true).text, ids);
  return ids;
}

Conversation::Conversation(Answerer& answerer, const ChatRenderer& renderer)
    : answerer_(answerer), renderer_(renderer) {
  answerer_.add_stop_ids(renderer.stop_ids());
}

Answer Conversation::say(const std::string& user, const OnText& on_text) {
  ChatRecord next = chat_;
  next.messages.push_back(turn("user", user));
  const std::vector<int32_t> ids = ids_of_chat(answerer_, renderer_, next);
  Answer answer = answerer_.answer(
      {.prompt = ids, .stream = "chat/" + std::to_string(num_answers_++), .on_text = on_text, .cached = &cached_});
  next.messages.push_back(turn("assistant", answer.text));
  chat_ = std::move(next);
  return answer;
}

void Conversation::reset() {
  std::erase_if(chat_.messages, [](const Message& message) { return message.role != "system"; });
}

void Conversation::set_system(const std::string& text) {
  chat_.messages.clear();
  if (!text.empty()) chat_.messages.push_back(turn("system", text));
}

}  // namespace chassis
