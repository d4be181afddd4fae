// Joins tokenizer, generation and stop texts.
#include "host/generate/answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "host/base/log.hpp"
#include "host/data/token_stream.hpp"
#include "host/generate/stop_texts.hpp"

namespace chassis {

Answerer::Answerer(Session& session, GenerationSettings settings) : session_(session), settings_(std::move(settings)) {
  CHASSIS_CHECK(session_.tokenizer() != nullptr, "text is generated with a tokenizer");
}

std::vector<int32_t> Answerer::ids_of_text(std::string_view text) const {
  std::vector<int32_t> ids;
  tokenizer().encode(text, ids);
  const int32_t bos = tokenizer().bos_id();
  if (bos >= 0 && tokenizer().adds_bos() && (ids.empty() || ids.front() != bos)) ids.insert(ids.begin(), bos);
  return ids;
}

void Answerer::add_stop_ids(const std::vector<int32_t>& ids) {
  std::vector<int32_t>& all = settings_.options.stop_ids;
  for (const int32_t id : ids)
    if (std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
}

Answer Answerer::answer(const AnswerRequest& request) {
  GenerateOptions options = settings_.options;
  options.stream = request.stream;
  options.max_new_tokens = check_answer_length(session_.model(), session_.program(),
                                               static_cast<int64_t>(request.prompt.size()), options.max_new_tokens);
  Answer answer;
  answer.num_prompt_tokens = request.prompt.size();
  TokenStream pieces(tokenizer());
  if (request.continues_text) pieces.continue_from(request.prompt);
  StopTexts stops(settings_.stop_texts);
  bool interrupted = false;
  const auto show = [&](const std::string& text) {
    answer.text += text;
    if (request.on_text && !text.empty() && !interrupted) interrupted = !request.on_text(text);
  };
  const auto on_token = [&](int32_t id) {
    show(stops.add(pieces.add(id)));
    return !stops.found() && !interrupted;
  };
  const Generated made = generate(session_.executor(), request.prompt, options, session_.device(), on_token,
                                  options.use_cache ? request.cached : nullptr);
  if (!interrupted) {
    show(stops.add(pieces.finish()));
    show(stops.finish());
  }
  answer.num_tokens = made.ids.size();
  const bool stopped = stops.found() || made.finish == Finish::kStopId;
  answer.finish_reason = interrupted ? "interrupted" : stopped ? "stop" : "length";
  if (made.num_masked > 0 && session_.rank() == 0)
    counted_warning("generate.masked_ids",
                    fmt::format("for {} of {} tokens the model's most likely id was outside the tokenizer's {} ids, "
                                "and the most likely of those was taken; does the tokenizer belong to the model?",
                                made.num_masked, made.ids.size(), options.vocab_size),
                    made.num_masked);
  return answer;
}

}  // namespace chassis
