// A table of parameters: those that are read, and those that are accepted only with the value that changes nothing.
#include "host/serve/serve_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "host/base/json.hpp"
#include "host/base/printable.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {
namespace {

constexpr size_t kMaxStopTexts = 16, kMaxStopBytes = 1024;
constexpr int64_t kMaxCount = 1 << 24;
// Far more than a token has on average. A longer text is refused before a tokenizer spends time on it.
constexpr size_t kMaxBytesPerPosition = 128;

[[noreturn]] void refuse(std::string_view param, const std::string& message) {
  throw RefusedRequest(400, message, std::string(param), "invalid_value");
}

[[noreturn]] void refuse_type(std::string_view param, const Json& value, std::string_view wanted) {
  throw RefusedRequest(400, fmt::format("'{}' must be {}, not {}", param, wanted, value.type_name()),
                       std::string(param), "invalid_type");
}

bool bool_of(std::string_view param, const Json& value) {
  if (!value.is_boolean()) refuse_type(param, value, "true or false");
  return value.get<bool>();
}

int64_t int_of(std::string_view param, const Json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) refuse_type(param, value, "an integer");
  const bool is_wide = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = is_wide ? INT64_MAX : value.get<int64_t>();
  if (is_wide || number < min || number > max)
    refuse(param, fmt::format("'{}' is {}, expected {} to {}", param, value.dump(), min, max));
  return number;
}

double number_of(std::string_view param, const Json& value, double min, double max) {
  if (!value.is_number()) refuse_type(param, value, "a number");
  const double number = value.get<double>();
  if (!(number >= min && number <= max))
    refuse(param, fmt::format("'{}' is {}, expected {} to {}", param, value.dump(), min, max));
  return number;
}

std::string quoted(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + printable(name, 200) + "'";
  return text;
}

// A request while its parameters are read.
struct Reading {
  const ServedModels& models;
  ServeRequest request = {};
  Json messages = {}, tools = {}, prompt = {};  // null: not given
  bool has_stream_options = false;
  std::optional<int64_t> max_tokens = {};
};

using Read = void (*)(Reading& reading, std::string_view param, const Json& value);

struct Parameter {
  std::string_view name;
  Read read;
  bool in_chat = true, in_completions = true;
};

void read_model(Reading& reading, std::string_view param, const Json& value) {
  if (!value.is_string()) refuse_type(param, value, "a string");
  const std::string name = value.get<std::string>();
  const std::vector<std::string>& names = reading.models.names;
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    throw RefusedRequest(
        404,
        fmt::format("no model '{}' here; {}", printable(name, 200),
                    names.size() == 1 ? "the one that is served is '" + printable(names.front(), 200) + "'"
                                      : "those that are served are " + quoted(names)),
        "model", "model_not_found");
  reading.request.model = static_cast<size_t>(found - names.begin());
}

void read_max_tokens(Reading& reading, std::string_view param, const Json& value) {
  const int64_t number = int_of(param, value, 1, kMaxCount);
  if (reading.max_tokens && *reading.max_tokens != number)
    refuse(param, "'max_tokens' and 'max_completion_tokens' differ; give one of them");
  reading.max_tokens = number;
}

void read_stop(Reading& reading, std::string_view param, const Json& value) {
  if (!value.is_string() && !value.is_array()) refuse_type(param, value, "a string or a list of strings");
  const Json list = value.is_array() ? value : Json::array({value});
  if (list.size() > kMaxStopTexts)
    refuse(param, fmt::format("'stop' has {} texts, at most {} are allowed", list.size(), kMaxStopTexts));
  for (const Json& text : list) {
    if (!text.is_string()) refuse_type(param, text, "a string or a list of strings");
    reading.request.stop_texts.push_back(text.get<std::string>());
    const size_t size = reading.request.stop_texts.back().size();
    if (size == 0) refuse(param, "'stop' has an empty text, which would end every answer before it begins");
    if (size > kMaxStopBytes)
      refuse(param, fmt::format("'stop' has a text of {} bytes, at most {} are allowed", size, kMaxStopBytes));
  }
}

void read_stream_options(Reading& reading, std::string_view param, const Json& value) {
  if (!value.is_object()) refuse_type(param, value, "an object");
  reading.has_stream_options = true;
  for (const auto& [key, option] : value.items()) {
    const std::string path = "stream_options." + key;
    if (key != "include_usage")
      throw RefusedRequest(400, "unknown parameter '" + printable(path) + "'", path, "unknown_parameter");
    if (!option.is_null()) reading.request.includes_usage = bool_of(path, option);
  }
}

const Parameter kParameters[] = {
    {"model", read_model},
    {"messages", [](Reading& to, std::string_view, const Json& value) { to.messages = value; }, true, false},
    {"tools", [](Reading& to, std::string_view, const Json& value) { to.tools = value; }, true, false},
    {"prompt", [](Reading& to, std::string_view, const Json& value) { to.prompt = value; }, false, true},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_tokens},
    {"temperature",
     [](Reading& to, std::string_view param, const Json& value) {
       to.request.options.sampling.temperature = number_of(param, value, 0, 100);
     }},
    {"top_p", [](Reading& to, std::string_view param,
                 const Json& value) { to.request.options.sampling.top_p = number_of(param, value, 0, 1); }},
    {"top_k", [](Reading& to, std::string_view param,
                 const Json& value) { to.request.options.sampling.top_k = int_of(param, value, 0, kMaxCount); }},
    {"min_p", [](Reading& to, std::string_view param,
                 const Json& value) { to.request.options.sampling.min_p = number_of(param, value, 0, 1); }},
    {"repetition_penalty",
     [](Reading& to, std::string_view param, const Json& value) {
       to.request.options.sampling.repetition_penalty = number_of(param, value, 0.01, 100);
     }},
    {"stop", read_stop},
    {"seed",
     [](Reading& to, std::string_view param, const Json& value) {
       to.request.options.seed = static_cast<uint64_t>(int_of(param, value, INT64_MIN, INT64_MAX));
       to.request.has_seed = true;
     }},
    {"n",
     [](Reading& to, std::string_view param, const Json& value) {
       to.request.answers_per_prompt =
           static_cast<size_t>(int_of(param, value, 1, static_cast<int64_t>(to.models.max_answers)));
     }},
    {"stream",
     [](Reading& to, std::string_view param, const Json& value) { to.request.streams = bool_of(param, value); }},
    {"stream_options", read_stream_options},
    // They only describe the request.
    {"user", [](Reading&, std::string_view, const Json&) {}},
    {"metadata", [](Reading&, std::string_view, const Json&) {}},
};

// A parameter without an implementation: only values that ask for nothing are accepted, as null does everywhere.
struct Unsupported {
  std::string_view name;
  std::vector<Json> neutral;
};

const std::vector<Unsupported>& unsupported_parameters() {
  static const std::vector<Unsupported> kAll = {{"best_of", {1}},
                                                {"echo", {false}},
                                                {"frequency_penalty", {0}},
                                                {"function_call", {}},
                                                {"functions", {}},
                                                {"guided_json", {}},
                                                {"logit_bias", {Json::object()}},
                                                {"logprobs", {false}},
                                                {"modalities", {Json::array({"text"})}},
                                                {"parallel_tool_calls", {true, false}},
                                                {"presence_penalty", {0}},
                                                {"reasoning_effort", {}},
                                                {"response_format", {Json{{"type", "text"}}}},
                                                {"service_tier", {"auto", "default"}},
                                                {"store", {false}},
                                                {"suffix", {}},
                                                {"tool_choice", {"auto"}},
                                                {"top_logprobs", {0}}};
  return kAll;
}

void read_parameter(Reading& reading, const std::string& name, const Json& value) {
  const auto known = std::ranges::find(kParameters, name, &Parameter::name);
  if (known != std::end(kParameters) && (reading.request.is_chat ? known->in_chat : known->in_completions)) {
    if (!value.is_null()) known->read(reading, name, value);
    return;
  }
  if (value.is_null()) return;
  const auto refused = std::ranges::find(unsupported_parameters(), name, &Unsupported::name);
  if (refused == unsupported_parameters().end()) {
    const std::string shown = printable(name, 200);
    throw RefusedRequest(400, "unknown parameter '" + shown + "'", shown, "unknown_parameter");
  }
  if (std::ranges::find(refused->neutral, value) != refused->neutral.end()) return;
  std::string accepted;
  for (const Json& neutral : refused->neutral) accepted += (accepted.empty() ? "" : " and ") + json_line(neutral);
  throw RefusedRequest(
      400, fmt::format("'{}' is not supported{}", name, accepted.empty() ? "" : "; what is accepted is " + accepted),
      name, "unsupported_parameter");
}

// A parameter without effect is refused, as the keys of [generate] are, unless the request itself asks for a
// temperature of 0, as evaluation harnesses do beside a top_p of their own. Keys of the configuration give way to it.
void settle_sampling(Reading& reading, const Json& body) {
  SamplingOptions& sampling = reading.request.options.sampling;
  if (sampling.temperature > 0.0) return;
  const auto is_given = [&](const char* key) { return body.contains(key) && !body[key].is_null(); };
  const auto settle = [&](const char* key, auto& value, auto neutral) {
    if (!is_given("temperature") && is_given(key) && value != neutral)
      refuse(key, fmt::format("'{}' = {} has no effect at temperature 0, which takes the most likely token; set "
                              "'temperature' too, such as 1.0, or leave '{}' out",
                              key, value, key));
    value = neutral;
  };
  settle("top_p", sampling.top_p, 1.0);
  settle("top_k", sampling.top_k, int64_t{0});
  settle("min_p", sampling.min_p, 0.0);
}

Json body_of(std::string_view text) {
  Json body;
  try {
    body = parse_json(text, "body");
  } catch (const Error& error) {
    throw RefusedRequest(400, error.where().text() + ": " + error.message(), "", "invalid_json");
  }
  if (!body.is_object())
    throw RefusedRequest(400, fmt::format("the body must be a JSON object, not {}", body.type_name()), "",
                         "invalid_json");
  return body;
}

Reading read_parameters(const Json& body, const ServedModels& models, bool is_chat) {
  Reading reading{.models = models};
  ServeRequest& request = reading.request;
  request.is_chat = is_chat;
  request.options = models.options;
  for (const auto& [name, value] : body.items()) read_parameter(reading, name, value);
  if (reading.max_tokens) request.options.max_new_tokens = *reading.max_tokens;
  if (reading.has_stream_options && !request.streams) refuse("stream_options", "'stream_options' needs 'stream': true");
  settle_sampling(reading, body);
  return reading;
}

// Clients write null for the keys of a message that say nothing.
Json clean_messages(const Json& messages) {
  if (!messages.is_array()) refuse_type("messages", messages, "a list of messages");
  if (messages.empty()) refuse("messages", "'messages' is empty");
  Json cleaned = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) refuse_type("messages", message, "a list of objects");
    Json& kept = cleaned.emplace_back(Json::object());
    for (const auto& [key, value] : message.items()) {
      if (key == "train" || key == "weight") refuse("messages", "'" + key + "' of a message belongs to training data");
      const bool says_nothing = value.is_null() || (key == "annotations" && value.empty());
      if (!says_nothing) kept[key] = value;
    }
  }
  return cleaned;
}

// Read as a row of training data is.
ChatRecord chat_of(const Json& messages, const Json& tools) {
  Json row = {{"messages", clean_messages(messages)}};
  if (!tools.is_null()) row["tools"] = tools;
  DataSetConfig set;
  set.format = DataFormat::kMessages;
  const std::unique_ptr<RowParser> parser = make_row_parser(set, 0);
  RawRow raw;
  raw.bytes = json_line(row);
  ChatRecord chat;
  try {
    chat = std::get<ChatRecord>(parser->parse(raw, "body"));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kConfig) throw;
    refuse("messages", error.message());
  }
  if (const auto& unused = parser->notes().unused_columns; !unused.empty())
    throw RefusedRequest(400, "unknown key '" + printable(unused.begin()->first) + "' in 'messages'", "messages",
                         "unknown_parameter");
  if (chat.messages.back().role == "assistant")
    refuse("messages", "the last message is the assistant's, so there is nothing to answer");
  return chat;
}

std::vector<int32_t> ids_of(const Json& list, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const Json& id : list) ids.push_back(static_cast<int32_t>(int_of("prompt", id, 0, vocab_size - 1)));
  return ids;
}

// A string, a list of strings, a list of ids, or a list of lists of ids.
std::vector<Prompt> prompts_of(const Json& prompt, const ServedModels& models) {
  const std::string_view wanted = "a string, a list of strings, a list of ids or a list of lists of ids";
  if (prompt.is_string()) return {prompt.get<std::string>()};
  if (!prompt.is_array()) refuse_type("prompt", prompt, wanted);
  if (prompt.empty()) refuse("prompt", "'prompt' is empty");
  if (prompt.front().is_number()) return {ids_of(prompt, models.options.vocab_size)};
  if (prompt.size() > models.max_answers)
    refuse("prompt", fmt::format("'prompt' has {} texts, at most {} are answered by one request", prompt.size(),
                                 models.max_answers));
  std::vector<Prompt> prompts;
  for (const Json& one : prompt) {
    if (one.type() != prompt.front().type() || (!one.is_string() && !one.is_array()))
      refuse_type("prompt", one, wanted);
    if (one.is_string())
      prompts.emplace_back(one.get<std::string>());
    else
      prompts.push_back(ids_of(one, models.options.vocab_size));
  }
  return prompts;
}

size_t bytes_of(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  size_t bytes = 0;
  if (const auto* chat = std::get_if<ChatRecord>(&prompt))
    for (const Message& message : chat->messages)
      for (const ContentPart& part : message.content) bytes += part.text.size();
  return bytes;
}

ServeRequest checked(Reading reading) {
  ServeRequest& request = reading.request;
  for (const Prompt& prompt : request.prompts)
    if (const size_t bytes = bytes_of(prompt);
        bytes / kMaxBytesPerPosition > static_cast<size_t>(reading.models.max_positions))
      throw RefusedRequest(
          400, fmt::format("the prompt has {} bytes, too many for {} positions", bytes, reading.models.max_positions),
          request.is_chat ? "messages" : "prompt", "context_length_exceeded");
  if (request.num_answers() > reading.models.max_answers)
    refuse("n", fmt::format("{} prompts with {} answers each are {} answers, at most {} are given to one request",
                            request.prompts.size(), request.answers_per_prompt, request.num_answers(),
                            reading.models.max_answers));
  return std::move(request);
}

}  // namespace

ServeRequest read_chat_request(std::string_view text, const ServedModels& models) {
  Reading reading = read_parameters(body_of(text), models, /*is_chat=*/true);
  if (reading.messages.is_null()) throw RefusedRequest(400, "'messages' is missing", "messages", "missing_parameter");
  reading.request.prompts.emplace_back(chat_of(reading.messages, reading.tools));
  return checked(std::move(reading));
}

ServeRequest read_completion_request(std::string_view text, const ServedModels& models) {
  Reading reading = read_parameters(body_of(text), models, /*is_chat=*/false);
  if (reading.prompt.is_null()) throw RefusedRequest(400, "'prompt' is missing", "prompt", "missing_parameter");
  reading.request.prompts = prompts_of(reading.prompt, models);
  return checked(std::move(reading));
}

int64_t room_for_answer(const ServedModels& models, size_t num_prompt_tokens, int64_t wanted) {
  const auto num_tokens = static_cast<int64_t>(num_prompt_tokens);
  if (num_tokens == 0) throw RefusedRequest(400, "the prompt is empty", "prompt", "invalid_value");
  if (num_tokens > models.max_positions)
    throw RefusedRequest(400,
                         fmt::format("the prompt has {} tokens, which leaves no room for an answer in {} positions",
                                     num_tokens, models.max_positions),
                         "prompt", "context_length_exceeded");
  return std::min(wanted, models.max_positions - num_tokens + 1);  // the last token is not an input
}

}  // namespace chassis
