// Builds the objects with their keys in OpenAI's order.
#include "host/serve/serve_response.hpp"

#include <utility>

#include "chassis/http.hpp"
#include "host/base/json.hpp"

namespace chassis {
namespace {

std::string_view error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json usage_of(const std::vector<Answer>& answers, size_t answers_per_prompt) {
  const TokenCounts counts = token_counts(answers, answers_per_prompt);
  return {{"prompt_tokens", counts.prompt},
          {"completion_tokens", counts.answer},
          {"total_tokens", counts.prompt + counts.answer}};
}

}  // namespace

TokenCounts token_counts(const std::vector<Answer>& answers, size_t answers_per_prompt) {
  TokenCounts counts;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (i % answers_per_prompt == 0) counts.prompt += answers[i].num_prompt_tokens;
    counts.answer += answers[i].num_tokens;
  }
  return counts;
}

std::string error_json(int status, const std::string& message, const std::string& param, const std::string& code) {
  return json_line({{"error",
                     {{"message", message},
                      {"type", error_type(status)},
                      {"param", text_or_null(param)},
                      {"code", text_or_null(code)}}}});
}

std::string model_json(const std::vector<std::string>& names, size_t index, int64_t unix_time_s) {
  return json_line({{"id", names.at(index)},
                    {"object", "model"},
                    {"created", unix_time_s},
                    {"owned_by", "chassis"},
                    {"parent", index == 0 ? Json() : Json(names.front())}});
}

std::string models_json(const std::vector<std::string>& names, int64_t unix_time_s) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) list += (i > 0 ? "," : "") + model_json(names, i, unix_time_s);
  return "{\"object\":\"list\",\"data\":[" + list + "]}";
}

ResponseWriter::ResponseWriter(bool is_chat, bool includes_usage, std::string model, int64_t unix_time_s)
    : is_chat_(is_chat),
      includes_usage_(includes_usage),
      id_((is_chat ? "chatcmpl-" : "cmpl-") + new_secret()),
      model_(std::move(model)),
      unix_time_s_(unix_time_s) {}

Json ResponseWriter::object(std::string_view kind) const {
  return {{"id", id_}, {"object", kind}, {"created", unix_time_s_}, {"model", model_}};
}

std::string ResponseWriter::whole(const std::vector<Answer>& answers, size_t answers_per_prompt) const {
  Json choices = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    Json choice = {{"index", i}};
    if (is_chat_)
      choice["message"] = {{"role", "assistant"}, {"content", answers[i].text}};
    else
      choice["text"] = answers[i].text;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = answers[i].finish_reason;
    choices.push_back(std::move(choice));
  }
  Json response = object(is_chat_ ? "chat.completion" : "text_completion");
  response["choices"] = std::move(choices);
  response["usage"] = usage_of(answers, answers_per_prompt);
  return json_line(response);
}

std::string ResponseWriter::event(Json choice) const {
  Json response = object(is_chat_ ? "chat.completion.chunk" : "text_completion");
  response["choices"] = Json::array({std::move(choice)});
  if (includes_usage_) response["usage"] = nullptr;
  return json_line(response);
}

std::string ResponseWriter::begin_event(size_t index) const {
  return event({{"index", index},
                {"delta", {{"role", "assistant"}, {"content", ""}}},
                {"logprobs", nullptr},
                {"finish_reason", nullptr}});
}

std::string ResponseWriter::text_event(size_t index, std::string_view text) const {
  Json choice = {{"index", index}};
  if (is_chat_)
    choice["delta"] = {{"content", text}};
  else
    choice["text"] = text;
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return event(std::move(choice));
}

std::string ResponseWriter::end_event(size_t index, const std::string& finish_reason) const {
  Json choice = {{"index", index}};
  if (is_chat_)
    choice["delta"] = Json::object();
  else
    choice["text"] = "";
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason;
  return event(std::move(choice));
}

std::string ResponseWriter::usage_event(const std::vector<Answer>& answers, size_t answers_per_prompt) const {
  Json response = object(is_chat_ ? "chat.completion.chunk" : "text_completion");
  response["choices"] = Json::array();
  response["usage"] = usage_of(answers, answers_per_prompt);
  return json_line(response);
}

}  // namespace chassis
