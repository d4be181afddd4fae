// Rows with a better and a worse answer. Answers are texts, single messages, or lists of messages. The messages before
// them are a prompt, an instruction, a conversation, or those with which both lists begin.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "host/base/printable.hpp"
#include "host/data/message_parser.hpp"
#include "host/data/row_names.hpp"
#include "host/data/row_parsers.hpp"

namespace chassis {
namespace {

class PreferenceParser final : public JsonRowParser {
 public:
  explicit PreferenceParser(const DataSetConfig& config)
      : JsonRowParser(config), open_ai_(config, MessageStyle::kOpenAi), sharegpt_(config, MessageStyle::kShareGpt) {}

 private:
  using Messages = std::vector<Message>;

  Record read(const RowFields& row) override {
    const JsonElement chosen = required(row, "chosen"), rejected = required(row, "rejected");
    if (chosen.type() != rejected.type()) {
      throw row.place().error(fmt::format("\"{}\" is {}, but \"{}\" is {}", printable(row.path("chosen")),
                                          kind_text(chosen), printable(row.path("rejected")), kind_text(rejected)));
    }
    Messages better = messages(row, "chosen", chosen, "assistant");
    Messages worse = messages(row, "rejected", rejected, "assistant");
    Messages shared = prompt(row);
    if (chosen.is_array())
      take_shared(row, shared, better, worse);
    else if (shared.empty())
      throw missing_prompt(row);
    add_system(row.place(), row.path("system"), row.string_or_empty("system"), shared);
    PreferenceRecord record;
    record.chosen = chat(row, "chosen", shared, std::move(better));
    record.rejected = chat(row, "rejected", std::move(shared), std::move(worse));
    record.margin = margin(row);
    return record;
  }

  // A text is a message of `role`.
  Messages messages(const RowFields& row, std::string_view key, JsonElement value, std::string_view role) {
    const RowPlace& place = row.place();
    const std::string path = row.path(key);
    JsonArray list;
    JsonElement first = value;
    if (!value.get(list)) {
      if (list.begin() == list.end()) return {};
      first = list.at(0);
      return parser_of(first).messages(place, path, value);
    }
    if (value.is_object()) return {parser_of(value).message(place, path, value)};
    if (!value.is_string()) throw place.type_error(path, value, "a text, a message or a list of messages");
    return {text_message(std::string(role), place.string(path, value))};
  }

  MessageParser& parser_of(JsonElement message) {
    JsonObject object;
    if (message.get(object)) return open_ai_;
    return sharegpt_.fits(object) && !open_ai_.fits(object) ? sharegpt_ : open_ai_;
  }

  Messages prompt(const RowFields& row) {
    std::string_view source;
    for (const std::string_view key : {"prompt", "instruction", "conversations", "messages"}) {
      if (!row.find(key)) continue;
      if (!source.empty()) {
        throw row.place().error(fmt::format("\"{}\" and \"{}\" are both there: which comes before the answers?",
                                            printable(row.path(source)), printable(row.path(key))));
      }
      source = key;
    }
    if (source.empty()) return {};
    if (source != "instruction") return messages(row, source, *row.find(source), "user");
    return {text_message("user", instruction_text(required_string(row, source), row.string_or_empty("input")))};
  }

  // Lists of messages may begin with the prompt, or may be the only place where it is.
  void take_shared(const RowFields& row, Messages& shared, Messages& better, Messages& worse) const {
    const size_t most = std::min(better.size(), worse.size());
    if (most == 0) return;  // chat() reports the list
    const auto differ = std::mismatch(better.begin(), better.begin() + static_cast<ptrdiff_t>(most - 1), worse.begin());
    auto num_shared = differ.first - better.begin();
    if (shared.empty()) {
      if (num_shared == 0) throw missing_prompt(row);
      shared.assign(better.begin(), differ.first);
    } else {
      // A system message of the lists may stand in front of the prompt.
      const auto begin = std::search(better.begin(), differ.first, shared.begin(), shared.end());
      const bool repeated = begin != differ.first && begin - better.begin() <= 1;
      if (!repeated && better.front().role == "assistant" && worse.front().role == "assistant") return;
      if (!repeated) {
        throw row.place()
            .error(fmt::format("\"{}\" and \"{}\" begin with neither the prompt nor an answer",
                               printable(row.path("chosen")), printable(row.path("rejected"))))
            .hint("leave out the prompt if the lists are whole conversations");
      }
      num_shared = begin - better.begin() + static_cast<ptrdiff_t>(shared.size());
      shared.assign(better.begin(), better.begin() + num_shared);
    }
    better.erase(better.begin(), better.begin() + num_shared);
    worse.erase(worse.begin(), worse.begin() + num_shared);
  }

  Error missing_prompt(const RowFields& row) const {
    return row.place()
        .error(fmt::format("no message comes before \"{}\" and \"{}\"", printable(row.path("chosen")),
                           printable(row.path("rejected"))))
        .hint("add a prompt, or lists of messages that begin with the same ones");
  }

  ChatRecord chat(const RowFields& row, std::string_view key, Messages shared, Messages answer) {
    if (answer.empty()) throw row.place().error(fmt::format("\"{}\" has no message", printable(row.path(key))));
    ChatRecord chat;
    chat.messages = std::move(shared);
    chat.first_trained = chat.messages.size();
    std::move(answer.begin(), answer.end(), std::back_inserter(chat.messages));
    if (const auto tools = row.find("tools")) chat.tools_json = open_ai_.tools(row.place(), row.path("tools"), *tools);
    return chat;
  }

  // In a .csv file it is a text.
  std::optional<double> margin(const RowFields& row) const {
    const std::optional<JsonElement> value = row.find("margin");
    if (!value) return std::nullopt;
    const std::string path = row.path("margin");
    if (!value->is_string()) return row.place().number(path, *value);
    const std::string_view text = row.place().string(path, *value);
    if (text.empty()) return std::nullopt;
    double number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc() || end != text.data() + text.size()) throw row.place().type_error(path, *value, "a number");
    return number;
  }

  MessageParser open_ai_, sharegpt_;
};

}  // namespace

std::unique_ptr<RowParser> make_preference_parser(const DataSetConfig& config) {
  return std::make_unique<PreferenceParser>(config);
}

}  // namespace chassis
