// A conversation with the model of a session: turns, the template, and the keys and values of the turns so far.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/data/chat_renderer.hpp"
#include "host/data/record.hpp"
#include "host/generate/answer.hpp"

namespace chassis {

// Renders with data.template or the tokenizer's own. Refers to the session. Throws a config error if there is none.
ChatRenderer chat_renderer(const Session& session);
// A conversation that begins with this turn.
ChatRecord user_turn(const std::string& text);
// The text of a conversation, up to where the assistant's answer begins, as ids.
std::vector<int32_t> ids_of_chat(const Answerer& answerer, const ChatRenderer& renderer, const ChatRecord& chat);

class Conversation {
 public:
  // Both must outlive the object. Adds the renderer's stop ids to those of the answerer.
  Conversation(Answerer& answerer, const ChatRenderer& renderer);

  // [step][all-ranks] Adds a turn of the user and its answer. If the template refuses the conversation, throws a config
  // error and leaves the turn out. Reuses the beginning that the new ids share with the previous ones; so in rare cases
  // of nearly equal logits, an answer differs by rounding from that of a whole prefill.
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
