// Answers to the prompts of [sample] while a model is trained, to show what it has learned. Changes nothing that
// training depends on.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/data/chat_renderer.hpp"
#include "host/generate/answer.hpp"
#include "host/session/session.hpp"
#include "host/train/step_record.hpp"

namespace chassis {

class Samples {
 public:
  // Throws a config error if prompts cannot become ids: there is no tokenizer, or no chat template with train.task =
  // "sft", where a prompt is a turn of the user.
  explicit Samples(Session& session);

  bool due(int64_t step, int64_t last_step) const;
  // [step][all-ranks] Answers all prompts; `on_answer` is called on all ranks.
  void take(int64_t step, const std::function<void(const SampleRecord&)>& on_answer);

 private:
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;
  };

  Session& session_;
  bool is_chat_ = false;
  std::optional<Answerer> answerer_;  // unset: there are no prompts
  std::vector<Prompt> prompts_;
};

// Counts a warning for sample.every_steps without sample.prompts.
void warn_of_unused_samples(const Settings& settings);

}  // namespace chassis
