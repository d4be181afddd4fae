// Makes records from rows of texts and conversations.
#include "host/data/row_parsers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/data_files.hpp"
#include "host/data/message_parser.hpp"
#include "host/data/missing_key.hpp"
#include "host/data/row_names.hpp"

namespace chassis {
namespace {

class TextParser final : public JsonRowParser {
 public:
  explicit TextParser(const DataSetConfig& config) : JsonRowParser(config) {}

 private:
  Record read(const RowFields& row) override { return TextRecord{std::string(required_string(row, "text"))}; }
  Record read_text(const RawRow& row) override { return TextRecord{row.bytes}; }
};

class AlpacaParser final : public JsonRowParser {
 public:
  explicit AlpacaParser(const DataSetConfig& config) : JsonRowParser(config) {}

 private:
  Record read(const RowFields& row) override {
    ChatRecord chat;
    const std::string_view instruction = required_string(row, "instruction"), output = required_string(row, "output");
    if (const std::string_view system = row.string_or_empty("system"); !system.empty())
      chat.messages.push_back(text_message("system", system));
    if (const auto history = row.find("history"))
      add_history(row.place(), row.path("history"), *history, chat.messages);
    chat.messages.push_back(text_message("user", instruction_text(instruction, row.string_or_empty("input"))));
    chat.messages.push_back(text_message("assistant", output));
    return chat;
  }
};

// Both messages and sharegpt: one list of messages.
class ChatParser final : public JsonRowParser {
 public:
  ChatParser(const DataSetConfig& config, MessageStyle style)
      : JsonRowParser(config),
        list_(style == MessageStyle::kShareGpt ? "conversations" : "messages"),
        messages_(config, style) {}

 private:
  Record read(const RowFields& row) override {
    ChatRecord chat;
    chat.messages = messages_.messages_or_text(row.place(), row.path(list_), required(row, list_));
    if (!chat.messages.empty())
      add_system(row.place(), row.path("system"), row.string_or_empty("system"), chat.messages);
    if (const auto tools = row.find("tools")) chat.tools_json = messages_.tools(row.place(), row.path("tools"), *tools);
    return chat;
  }

  std::string_view list_;
  MessageParser messages_;
};

class CompletionParser final : public JsonRowParser {
 public:
  explicit CompletionParser(const DataSetConfig& config)
      : JsonRowParser(config), messages_(config, MessageStyle::kOpenAi) {}

 private:
  Record read(const RowFields& row) override {
    const RowPlace& place = row.place();
    const JsonElement prompt = required(row, "prompt"), completion = required(row, "completion");
    if (prompt.is_string() != completion.is_string()) {
      throw place.error(fmt::format("\"{}\" is {}, but \"{}\" is {}: both are texts, or both are lists of messages",
                                    printable(row.path("prompt")), kind_text(prompt), printable(row.path("completion")),
                                    kind_text(completion)));
    }
    const std::optional<JsonElement> tools = row.find("tools");
    if (prompt.is_string()) {
      if (tools) throw place.error("tools need a prompt and a completion that are lists of messages");
      return CompletionRecord{std::string(required_string(row, "prompt")),
                              std::string(required_string(row, "completion"))};
    }
    ChatRecord chat;
    chat.messages = messages_.messages(place, row.path("prompt"), prompt);
    chat.first_trained = chat.messages.size();
    std::vector<Message> answer = messages_.messages(place, row.path("completion"), completion);
    if (answer.empty()) throw place.error(fmt::format("\"{}\" has no message", printable(row.path("completion"))));
    std::move(answer.begin(), answer.end(), std::back_inserter(chat.messages));
    if (tools) chat.tools_json = messages_.tools(place, row.path("tools"), *tools);
    return chat;
  }

  MessageParser messages_;
};

class SegmentsParser final : public JsonRowParser {
 public:
  explicit SegmentsParser(const DataSetConfig& config)
      : JsonRowParser(config), keys_(renamed_keys(tag_names(DataFormat::kSegments), config.tags)) {}

 private:
  Record read(const RowFields& row) override {
    const RowPlace& place = row.place();
    const std::string path = row.path("segments");
    SegmentsRecord record;
    for (const JsonElement item : place.list(path, required(row, "segments"))) {
      const std::string name = fmt::format("{}[{}]", path, record.segments.size());
      const RowFields fields(place, place.object(name, item), keys_, name + ".");
      const std::optional<JsonElement> text = fields.find("text"), label = fields.find("label");
      if (!text || !label)
        throw place.error(fmt::format("\"{}\" is missing", printable(fields.path(text ? "label" : "text"))));
      record.segments.push_back(
          {std::string(place.string(fields.path("text"), *text)), place.boolean(fields.path("label"), *label)});
    }
    return record;
  }

  KeyNames keys_;
};

// simdjson reports neither the position nor the defect. Another parser does, but it accepts some texts that simdjson
// refuses.
Error not_json(simdjson::error_code code, const std::string& text, const RowPlace& place) {
  const bool is_limit = code == simdjson::DEPTH_ERROR || code == simdjson::CAPACITY || code == simdjson::MEMALLOC;
  SourcePosition where = place.position();
  std::optional<JsonDefect> defect;
  if (text.starts_with("\xef\xbb\xbf"))
    defect = {"a byte order mark, which may stand only at the beginning of a file", 0};
  else if (!is_limit)
    defect = json_defect(text);
  if (!defect) {
    const bool is_number = code == simdjson::NUMBER_ERROR;
    return place.error(
        fmt::format("not JSON: {}", is_number ? "an integer of more than 64 bits" : simdjson::error_message(code)));
  }
  const auto end = text.begin() + static_cast<ptrdiff_t>(std::min(defect->byte, text.size()));
  where.line += static_cast<int>(std::count(text.begin(), end, '\n'));
  where.column = static_cast<int>(end - std::find(std::make_reverse_iterator(end), text.rend(), '\n').base()) + 1;
  Error error(ExitCode::kConfig, where, "not JSON: " + defect->what);
  if (const std::string_view rest(end, text.end()); rest.starts_with("NaN") || rest.starts_with("Infinity"))
    error.hint("JSON has no NaN and no Infinity; write null, or leave out the key");
  return error;
}

// The form of a row is the fault of whoever made its JSON. The values in it are those of the file.
Error wrong_form(const RawRow& row, Error error) {
  if (row.maker.empty()) return error;
  return plugin_error(fmt::format("{} gives a wrong row: {}: {}", row.maker, error.where().text(), error.message()));
}

}  // namespace

JsonRowParser::JsonRowParser(const DataSetConfig& config)
    : format_(config.format), columns_(row_keys(config.format, config.columns)) {
  try {
    require_names(config.format, "columns", config.columns);
    require_names(config.format, "tags", config.tags);
  } catch (const Error& error) {
    throw data_set_error(config, error.message()).hint(error.hint_text());
  }
}

Record JsonRowParser::parse(const RawRow& row, const std::string& file) {
  const RowPlace place(file, row.line, notes_, row.is_table);
  if (row.kind == RowKind::kText) return read_text(row);
  if (row.kind == RowKind::kTokens) return read_tokens(row, place);
  JsonElement value;
  if (const auto code = parse_with_wide_integers(parser_, row.bytes, place, value))
    throw wrong_form(row, not_json(code, row.bytes, place));
  JsonObject object;
  if (value.get(object))
    throw wrong_form(row, place.error(fmt::format("the row is {}, not a JSON object", kind_text(value))));
  if (const std::string key = key_that_occurs_twice(value); !key.empty())
    throw wrong_form(row, place.error(fmt::format("key \"{}\" occurs twice", printable(key))));
  return read(RowFields(place, object, columns_));
}

Record JsonRowParser::read_text(const RawRow&) {
  throw internal_error("a row of plain text for a format of JSON rows");
}

Record JsonRowParser::read_tokens(const RawRow&, const RowPlace&) {
  throw internal_error("a row of token ids for a format of JSON rows");
}

JsonElement JsonRowParser::required(const RowFields& row, std::string_view name) const {
  if (const std::optional<JsonElement> value = row.find(name)) return *value;
  throw missing_key_error(format_, row, name);
}

std::string_view JsonRowParser::required_string(const RowFields& row, std::string_view name) const {
  return row.place().string(row.path(name), required(row, name));
}

std::string instruction_text(std::string_view instruction, std::string_view input) {
  std::string text(instruction);
  if (!input.empty()) text.append("\n").append(input);
  return text;
}

void add_history(const RowPlace& place, const std::string& name, JsonElement history, std::vector<Message>& messages) {
  std::string_view text;
  if (!history.get(text) && text.empty()) return;
  size_t turn = 0;
  for (const JsonElement item : place.list(name, history)) {
    const std::string path = fmt::format("{}[{}]", name, turn++);
    const JsonArray pair = place.list(path, item);
    if (pair.size() != 2)
      throw place.error(fmt::format("\"{}\" has {} texts, not a question and an answer", path, pair.size()));
    for (size_t i = 0; i < 2; ++i) {
      const std::string_view said = place.string(fmt::format("{}[{}]", path, i), pair.at(i));
      messages.push_back(text_message(i == 0 ? "user" : "assistant", said));
    }
  }
}

std::optional<double> finite_number(const RowPlace& place, const std::string& name, JsonElement value) {
  constexpr std::string_view kSpace = " \t\r\n";
  constexpr double kLargest = 1e30;  // squares and sums of larger ones overflow
  double number = 0;
  if (!value.is_string() || place.is_wide_integer(value)) {
    number = place.number(name, value);
  } else {
    std::string_view text = place.string(name, value);
    const size_t begin = text.find_first_not_of(kSpace);
    if (begin == text.npos) return std::nullopt;
    text = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
    if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code != std::errc() || end != text.data() + text.size()) throw place.type_error(name, value, "a number");
  }
  if (!std::isfinite(number)) throw place.type_error(name, value, "a finite number");
  if (std::abs(number) > kLargest) throw place.type_error(name, value, "a number from -1e30 to 1e30");
  return number;
}

double plain_number(const RowPlace& place, const std::string& name, JsonElement value) {
  if (value.is_string() && !place.is_wide_integer(value)) throw place.type_error(name, value, "a number");
  return *finite_number(place, name, value);
}

std::unique_ptr<RowParser> make_row_parser(const DataSetConfig& config, int64_t vocab_size) {
  switch (config.format) {
    case DataFormat::kText:
      return std::make_unique<TextParser>(config);
    case DataFormat::kAlpaca:
      return std::make_unique<AlpacaParser>(config);
    case DataFormat::kShareGpt:
      return std::make_unique<ChatParser>(config, MessageStyle::kShareGpt);
    case DataFormat::kMessages:
      return std::make_unique<ChatParser>(config, MessageStyle::kOpenAi);
    case DataFormat::kPromptCompletion:
      return std::make_unique<CompletionParser>(config);
    case DataFormat::kSegments:
      return std::make_unique<SegmentsParser>(config);
    case DataFormat::kTokens:
      return make_token_parser(config, vocab_size);
    case DataFormat::kPreference:
      return make_preference_parser(config);
    case DataFormat::kLabelled:
      return make_labelled_parser(config);
    case DataFormat::kClassification:
      return make_class_parser(config);
    case DataFormat::kRollouts:
      return make_rollouts_parser(config);
    case DataFormat::kDistillation:
      return make_distillation_parser(config, vocab_size);
  }
  throw internal_error("a format without a parser");
}

}  // namespace chassis
