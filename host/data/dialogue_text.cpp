// A turn begins after a blank line with the name of its speaker.
#include "host/data/dialogue_text.hpp"

#include <algorithm>
#include <utility>

#include "host/data/message_parser.hpp"

namespace chassis {
namespace {

constexpr std::string_view kHuman = "Human:", kAssistant = "Assistant:", kBlankLine = "\n\n", kWhiteSpace = " \t\r\n";

std::string_view without_space(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

struct TurnStart {
  size_t line, text;  // where the blank line and what is said begin; npos: there is no further turn
  std::string_view role;
};

TurnStart next_turn(std::string_view text, size_t from) {
  for (size_t line = text.find(kBlankLine, from); line != text.npos; line = text.find(kBlankLine, line + 1)) {
    const std::string_view rest = text.substr(line + kBlankLine.size());
    for (const auto& [name, role] : {std::pair(kHuman, "user"), std::pair(kAssistant, "assistant")})
      if (rest.starts_with(name)) return {line, line + kBlankLine.size() + name.size(), role};
  }
  return {text.npos, text.npos, ""};
}

}  // namespace

bool is_dialogue_text(std::string_view text) {
  text = without_space(text);
  if (!text.starts_with(kHuman)) return false;
  for (TurnStart turn = next_turn(text, 0); turn.line != text.npos; turn = next_turn(text, turn.text))
    if (turn.role == "assistant") return true;
  return false;
}

std::vector<Message> dialogue_messages(std::string_view text) {
  text = without_space(text);
  std::vector<Message> messages;
  for (TurnStart turn{0, kHuman.size(), "user"}; turn.line != text.npos;) {
    const TurnStart next = next_turn(text, turn.text);
    const size_t end = std::min(next.line, text.size());
    messages.push_back(text_message(std::string(turn.role), without_space(text.substr(turn.text, end - turn.text))));
    turn = next;
  }
  return messages;
}

}  // namespace chassis
