// A conversation with the model of a session: turns, the template, and the keys and values of what was said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/data/chat_renderer.hpp"
#include "host/data/record.hpp"
#include "host/train/answer.hpp"

namespace chassis {

// By data.template, or the tokenizer's own template. Refers to the session. Throws a config error if there is none.
ChatRenderer chat_renderer(const Session& session);
// A conversation that begins with this turn.
ChatRecord user_turn(const std::string& text);
// The text of a conversation, up to where the assistant's answer begins, as ids.
std::vector<int32_t> ids_of_chat(const Answerer& answerer, const ChatRenderer& renderer, const ChatRecord& chat);

class Chat {
 public:
  // Both outlive the object. The renderer's stop ids become those of the answerer, too.
  Chat(Answerer& answerer, const ChatRenderer& renderer);

  // [step][all-ranks] Adds a turn of the user and its answer. If the template refuses the conversation, throws a config
  // error and leaves the turn out. Computes only what is not the beginning of the conversation before; so in rare cases
  // of nearly equal logits an answer differs in rounding from that of a whole prefill.
  Answer say(const std::string& user, const OnText& on_text = {});
  // Forgets all turns but the system message.
  void reset();
  // Forgets all turns; an empty text leaves the system message to the template.
  void set_system(const std::string& text);

 private:
  Answerer& answerer_;
  const ChatRenderer& renderer_;
  ChatRecord chat_;
  CachedRow cached_;
  uint64_t num_answers_ = 0;
};

}  // namespace chassis
