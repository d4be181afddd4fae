// Reads the bodies of requests in OpenAI's format. A parameter that would have an effect is used or refused by name,
// never ignored. Needs no model and no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "host/data/record.hpp"
#include "host/generate/generate.hpp"

namespace chassis {

// The reason why a request is not answered, as OpenAI's errors have it.
class RefusedRequest : public std::exception {
 public:
  RefusedRequest(int status, std::string message, std::string param = "", std::string code = "")
      : status_(status), message_(std::move(message)), param_(std::move(param)), code_(std::move(code)) {}

  int status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& param() const noexcept { return param_; }  // the key of the request; empty: none
  const std::string& code() const noexcept { return code_; }    // a word for programs; empty: none
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int status_;
  std::string message_, param_, code_;
};

// The models as requests see them: their names, their limits, and the settings of requests that say nothing.
struct ServedModels {
  std::vector<std::string> names;  // the base, then its adapters
  GenerateOptions options;
  int64_t max_positions = 0;  // of a prompt with its answer
  size_t max_answers = 128;   // to one request
};

// A text to continue, the ids of one, or a conversation to answer.
using Prompt = std::variant<std::string, std::vector<int32_t>, ChatRecord>;

struct ServeRequest {
  size_t model = 0;  // among the names; a request that names none gets the base
  bool is_chat = false;
  std::vector<Prompt> prompts;
  size_t answers_per_prompt = 1;
  bool streams = false;
  bool includes_usage = false;  // a stream ends with the number of tokens
  GenerateOptions options;
  bool has_seed = false;  // options.seed is the request's own
  std::vector<std::string> stop_texts;

  size_t num_answers() const { return prompts.size() * answers_per_prompt; }
};

// The body of POST /v1/chat/completions, and that of POST /v1/completions. Throw a RefusedRequest.
ServeRequest read_chat_request(std::string_view body, const ServedModels& models);
ServeRequest read_completion_request(std::string_view body, const ServedModels& models);

// The most tokens that an answer to a prompt may have, at most `wanted`. Throws a RefusedRequest if there is no room
// for one.
int64_t room_for_answer(const ServedModels& models, size_t num_prompt_tokens, int64_t wanted);

}  // namespace chassis
