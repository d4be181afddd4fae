// Answers prompts with the model of a session: ids of the prompt, generation, text in pieces, stop texts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/generate/generation_settings.hpp"
#include "host/session/session.hpp"

namespace chassis {

struct Answer {
  std::string text;
  std::string finish_reason;  // "stop": ended by the model or by a stop text; "length"; "interrupted"
  uint64_t num_prompt_tokens = 0;
  uint64_t num_tokens = 0;  // in the answer, without the stop id
};

// Called with every piece of text once it cannot be part of a stop text or of an incomplete character. Returns false to
// end the answer.
using OnText = std::function<bool(std::string_view)>;

struct AnswerRequest {
  std::vector<int32_t> prompt;
  std::string stream = "generate";  // names the random numbers
  bool continues_text = false;      // the answer continues the text of the prompt, perhaps within a word
  OnText on_text = {};              // may be empty
  CachedRow* cached = nullptr;      // as in TextRequest
  // In place of those of the answerer; its stop ids are added.
  std::optional<GenerateOptions> options = {};
  std::vector<std::string> stop_texts = {};  // in addition to those of the answerer
};

class Answerer {
 public:
  // Throws a config error if the session has no tokenizer.
  Answerer(Session& session, GenerationSettings settings);

  const GenerationSettings& settings() const { return settings_; }
  const GenerateOptions& options() const { return settings_.options; }
  // Adds ids that end an answer, such as those of a chat template.
  void add_stop_ids(const std::vector<int32_t>& ids);
  const Tokenizer& tokenizer() const { return *session_.tokenizer(); }

  // The ids of a text to continue, encoded like the beginning of a document: with BOS if the tokenizer adds one.
  std::vector<int32_t> ids_of_text(std::string_view text) const;

  // Begins an answer, which step() computes together with the other ones. `on_end` may begin another. Throws a config
  // error if the prompt is empty or too long for the model.
  void begin(AnswerRequest request, std::function<void(Answer)> on_end);
  size_t num_running() const { return texts_.num_texts(); }
  // [step][all-ranks] Computes the next token of every answer. All ranks compute the same answers, and must begin the
  // same ones in the same order.
  void step();
  // Ends all answers without a call of on_end, as is needed after a step that threw.
  void drop_all() { texts_.clear(); }
  // [step][all-ranks] Begins an answer and computes it to its end.
  Answer answer(AnswerRequest request);
  // [step][all-ranks] Answers the requests from number `first` up to `end`, generate.batch_size of them together, and
  // calls `on_answer` in their order. No other answer may be running. `gives_up` is asked before every step; returns
  // false if it ended the answers.
  bool answer_all(size_t first, size_t end, const std::function<AnswerRequest(size_t)>& request_of,
                  const std::function<void(size_t, Answer)>& on_answer, const std::function<bool()>& gives_up = {});

 private:
  class Writing;

  std::vector<std::string> stop_texts_of(const AnswerRequest& request) const;
  void warn_of_masked_ids(const Generated& made, int64_t vocab_size) const;

  Session& session_;
  GenerationSettings settings_;
  TextBatch texts_;
};

}  // namespace chassis
