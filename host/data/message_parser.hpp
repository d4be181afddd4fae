// Reads messages of conversations, in the form of OpenAI or of ShareGPT.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/json_row.hpp"
#include "host/data/record.hpp"

namespace chassis {

enum class MessageStyle { kOpenAi, kShareGpt };

// Used by one thread. `name` is the path of the value in its row, for messages: "messages[2]".
class MessageParser {
 public:
  MessageParser(const DataSetConfig& config, MessageStyle style);

  // Whether the object has a role of this form.
  bool fits(JsonObject message) const;
  Message message(const RowPlace& place, const std::string& name, JsonElement value);
  std::vector<Message> messages(const RowPlace& place, const std::string& name, JsonElement value);
  // The same, but the list may also be held as JSON text.
  std::vector<Message> messages_or_text(const RowPlace& place, const std::string& name, JsonElement value);
  // Reads a list of objects, or a JSON string with one. Returns it as JSON text, which is empty if the list is.
  std::string tools(const RowPlace& place, const std::string& name, JsonElement value);

 private:
  std::string role(const RowFields& fields) const;
  void read_content(const RowFields& fields, Message& message) const;
  void read_parts(const RowFields& fields, JsonArray parts, Message& message) const;
  std::string reasoning(const RowFields& fields) const;
  std::optional<bool> trained(const RowFields& fields) const;
  void read_function_call(const RowFields& fields, Message& message);
  void read_old_call(const RowFields& fields, JsonElement call, Message& message);
  std::string tool_calls(const RowPlace& place, const std::string& name, JsonElement value);
  std::string tool_call(const RowPlace& place, const std::string& name, JsonElement value);
  std::string function(const RowPlace& place, const std::string& name, JsonObject value, bool is_flat);
  std::string arguments(const RowPlace& place, const std::string& name, JsonElement value);
  JsonElement parsed(const RowPlace& place, const std::string& name, std::string_view text,
                     simdjson::dom::parser& parser) const;

  MessageStyle style_;
  KeyNames keys_;
  std::map<std::string, std::string, std::less<>> roles_;               // words of the file → roles
  simdjson::dom::parser text_parser_, arguments_parser_, list_parser_;  // for JSON inside strings
};

// The message of a role with a plain text.
Message text_message(std::string role, std::string_view text);
// Puts a system message in front. An equal one may already be there; another one is an error.
void add_system(const RowPlace& place, const std::string& name, std::string_view text, std::vector<Message>& messages);

}  // namespace chassis
