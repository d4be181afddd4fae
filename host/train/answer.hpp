// Answers prompts with the model of a session: ids of the prompt, generation, text that arrives in pieces, stop texts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "host/session/session.hpp"
#include "host/train/generation_settings.hpp"

namespace chassis {

struct Answer {
  std::string text;
  std::string finish_reason;  // "stop": the model ended it, or a stop text; "length"; "interrupted"
  uint64_t num_prompt_tokens = 0;
  uint64_t num_tokens = 0;  // of the answer, without the stop id
};

// Returns false to end the answer.
using OnText = std::function<bool(std::string_view)>;

class Answerer {
 public:
  // Throws a config error if the session has no tokenizer.
  Answerer(Session& session, GenerationSettings settings);

  GenerateOptions& options() { return settings_.options; }
  const Tokenizer& tokenizer() const { return *session_.tokenizer(); }

  // Ids of a text to continue: as a document begins, with BOS if the tokenizer adds one.
  std::vector<int32_t> ids_of_text(std::string_view text) const;
  // Ids of a rendered conversation, which spells its BOS itself.
  std::vector<int32_t> ids_of_chat(std::string_view rendered) const;

  // [step][all-ranks] All ranks compute the same. `stream` names the random numbers. `on_text` gets every piece of
  // text once it cannot be part of a stop text or of an incomplete character; it may be empty.
  Answer answer(const std::vector<int32_t>& prompt, const std::string& stream, const OnText& on_text = {},
                CachedRow* cached = nullptr);

 private:
  Session& session_;
  GenerationSettings settings_;
};

}  // namespace chassis
