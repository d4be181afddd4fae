// Reads the messages before an answer, and answers, of the formats that have both in keys of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host/data/json_row.hpp"
#include "host/data/message_parser.hpp"
#include "host/data/record.hpp"

namespace chassis {

using Messages = std::vector<Message>;

// The messages in front of an answer.
struct Prompt {
  Messages messages = {};
  std::string key = {};  // the key in the file; empty: the row has no prompt
  bool is_text = false;  // one message of the user, which the file has as a text
  bool is_blank() const { return messages.empty() || (is_text && messages.back().text().empty()); }
};

// Used by one thread.
class PromptParser {
 public:
  explicit PromptParser(const DataSetConfig& config);

  // The prompt is a text or messages under "prompt"; "instruction" with "input" and "history"; "input" alone; or a list
  // under "conversations" or "messages". Two of them are an error. A list that is equal to `whole`, a conversation with
  // its answer, is no prompt, and is counted as unused. Without the system message of the row.
  Prompt prompt(const RowFields& row, const Messages& whole = {});
  // A text, a message, or a list of messages in the form of OpenAI, ShareGPT or ColossalAI. A text is a message of
  // `role`.
  Messages messages(const RowFields& row, std::string_view name, JsonElement value, std::string_view role);
  // Removes from the front of the answer what it repeats of the prompt. Throws if it then begins with a message that is
  // not the assistant's.
  void remove_prompt(const RowFields& row, std::string_view name, const Prompt& prompt, Messages& answer) const;
  // The prompt with the system message of the row, and the answer, which is trained. `name` is that of the answer.
  ChatRecord chat(const RowFields& row, std::string_view name, Messages prompt, Messages answer);
  // A row with one answer: a "completion" after the prompt, or else the last message of a conversation.
  ChatRecord answered(const RowFields& row);

 private:
  MessageParser& parser_of(JsonElement message);
  Prompt read(const RowFields& row, std::string_view name, JsonElement value);

  DataFormat format_;
  MessageParser open_ai_, sharegpt_, colossal_;
};

// The index after the last message of the prompt, which stands at the front of `list` or after its system message; 0 if
// it does not. The last message of the list is never a part of the prompt.
size_t end_of_prompt(const Prompt& prompt, const Messages& list);

}  // namespace chassis
