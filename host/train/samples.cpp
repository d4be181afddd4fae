// Answers are drawn with random numbers that depend only on the seed and the prompt, so that steps can be compared.
#include "host/train/samples.hpp"

#include <fmt/format.h>

#include <utility>

#include "host/base/log.hpp"
#include "host/config/task_table.hpp"
#include "host/data/generation_config.hpp"
#include "host/generate/chat.hpp"
#include "host/generate/generation_settings.hpp"

namespace chassis {
namespace {

Answerer make_answerer(Session& session) {
  const Settings& settings = session.settings();
  if (session.tokenizer() == nullptr)
    throw config_error(settings.sample.prompts, "sample.prompts are texts, and the run has no tokenizer")
        .hint("set [tokenizer] plugin, or leave the prompts out");
  GenerationSettings made = generation_settings(settings, generation_config_of(settings), *session.tokenizer());
  made.options.max_new_tokens = settings.sample.max_new_tokens;
  return Answerer(session, std::move(made));
}

}  // namespace

Samples::Samples(Session& session) : session_(session), is_chat_(spec_of(session.settings().train.task).has_answers) {
  const SettingList& prompts = session.settings().sample.prompts;
  if (prompts->empty()) return;
  answerer_.emplace(make_answerer(session));
  std::optional<ChatRenderer> renderer;
  if (is_chat_) {
    renderer.emplace(chat_renderer(session));
    answerer_->add_stop_ids(renderer->stop_ids());
  }
  for (size_t i = 0; i < prompts->size(); ++i) {
    const std::string& text = (*prompts)[i];
    try {
      prompts_.push_back(
          {text, is_chat_ ? ids_of_chat(*answerer_, *renderer, user_turn(text)) : answerer_->ids_of_text(text)});
      if (prompts_.back().ids.empty()) throw config_error("the prompt is empty");
      check_answer_length(session.model(), session.program(), static_cast<int64_t>(prompts_.back().ids.size()), 1);
    } catch (const Error& error) {
      throw Error(ExitCode::kConfig, prompts.where_of(std::to_string(i)),
                  prompts.key_of(std::to_string(i)) + ": " + error.message())
          .hint(error.hint_text());
    }
  }
}

bool Samples::due(int64_t step, int64_t last_step) const {
  const int64_t every = session_.settings().sample.every_steps;
  return !prompts_.empty() && (step == last_step || (every > 0 && step % every == 0));
}

void Samples::take(int64_t step, const std::function<void(const SampleRecord&)>& on_answer) {
  const auto request_of = [&](size_t i) {
    return AnswerRequest{
        .prompt = prompts_[i].ids, .stream = "sample/" + std::to_string(i), .continues_text = !is_chat_};
  };
  answerer_->answer_all(0, prompts_.size(), request_of, [&](size_t i, Answer answer) {
    on_answer({.step = step,
               .index = i + 1,
               .num_prompts = prompts_.size(),
               .prompt = prompts_[i].text,
               .answer = std::move(answer.text),
               .finish_reason = std::move(answer.finish_reason),
               .num_tokens = answer.num_tokens});
  });
  session_.ranks().events().finish_step();
}

void warn_of_unused_samples(const Settings& settings) {
  const Setting<int64_t>& every = settings.sample.every_steps;
  if (!settings.sample.prompts->empty() || every <= 0) return;
  counted_warning(every.key(),
                  fmt::format("{} = {} has no effect, since there are no sample.prompts", every.key(), *every));
}

}  // namespace chassis
