// The bodies of responses in OpenAI's format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host/generate/answer.hpp"

namespace chassis {

// `type`: OpenAI's word for the status.
std::string error_json(int status, const std::string& message, const std::string& param = "",
                       const std::string& code = "");
// `names`: the base, then its adapters, which have it as their parent.
std::string model_json(const std::vector<std::string>& names, size_t index, int64_t unix_time_s);
std::string models_json(const std::vector<std::string>& names, int64_t unix_time_s);

// The tokens of a request and its answers; those of a prompt with several answers count once. `answers`: those to the
// first prompt, those to the second, …
struct TokenCounts {
  uint64_t prompt = 0, answer = 0;
};
TokenCounts token_counts(const std::vector<Answer>& answers, size_t answers_per_prompt);

// The responses to one request: one whole, or the events of a stream.
class ResponseWriter {
 public:
  // `includes_usage`: as OpenAI does, each event then has the key "usage".
  ResponseWriter(bool is_chat, bool includes_usage, std::string model, int64_t unix_time_s);

  // `answers` as in token_counts().
  std::string whole(const std::vector<Answer>& answers, size_t answers_per_prompt) const;

  // The event with which an answer to a chat begins.
  std::string begin_event(size_t index) const;
  std::string text_event(size_t index, std::string_view text) const;
  std::string end_event(size_t index, const std::string& finish_reason) const;
  std::string usage_event(const std::vector<Answer>& answers, size_t answers_per_prompt) const;

 private:
  Json object(std::string_view kind) const;
  std::string event(Json choice) const;

  bool is_chat_, includes_usage_;
  std::string id_, model_;
  int64_t unix_time_s_;
};

}  // namespace chassis
