// Texts such as "\n\nHuman: Hi\n\nAssistant: Hello", as HH-RLHF holds conversations.
#pragma once

#include <string_view>
#include <vector>

#include "host/data/record.hpp"

namespace chassis {

// True if the text begins with a turn of the human and has one of the assistant.
bool is_dialogue_text(std::string_view text);
// The turns as messages of user and assistant, without white space at both ends. Needs is_dialogue_text().
std::vector<Message> dialogue_messages(std::string_view text);

}  // namespace chassis
