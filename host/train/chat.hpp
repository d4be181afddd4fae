// A conversation with the model of a session: turns, the template, and the keys and values of what was said.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/data/record.hpp"
#include "host/train/answer.hpp"

namespace chassis {

// How conversations become prompts.
struct ChatPrompts {
  // The text of a conversation, up to where the assistant's answer begins.
  std::function<std::string(const ChatRecord& chat)> render;
  std::vector<int32_t> stop_ids;  // that end an answer
};

// By [data] template, or the tokenizer's own. Refers to the session. Throws a config error if there is no template.
ChatPrompts chat_prompts(const Session& session);
// Adds the template's stop ids to those of the answerer.
void use_stop_ids(Answerer& answerer, const ChatPrompts& prompts);

class Chat {
 public:
  // The answerer outlives the object.
  Chat(Answerer& answerer, ChatPrompts prompts);

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
  ChatPrompts prompts_;
  ChatRecord chat_;
  CachedRow cached_;
  uint64_t num_answers_ = 0;
};

}  // namespace chassis
