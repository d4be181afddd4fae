// Joins tokenizer, generation and stop texts.
#include "host/generate/answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
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

// The text of an answer while its tokens arrive.
class Answerer::Writing {
 public:
  Writing(const Answerer& answerer, const AnswerRequest& request)
      : pieces_(answerer.tokenizer()), stops_(answerer.stop_texts_of(request)), on_text_(request.on_text) {
    answer_.num_prompt_tokens = request.prompt.size();
    if (request.continues_text) pieces_.continue_from(request.prompt);
  }

  // Returns false if the answer ends here.
  bool add(int32_t id) {
    show(stops_.add(pieces_.add(id)));
    return !stops_.found() && !is_interrupted_;
  }

  Answer finish(const Generated& made) {
    if (!is_interrupted_) {
      show(stops_.add(pieces_.finish()));
      show(stops_.finish());
    }
    answer_.num_tokens = made.ids.size();
    const bool stopped = stops_.found() || made.finish == Finish::kStopId;
    answer_.finish_reason = is_interrupted_ ? "interrupted" : stopped ? "stop" : "length";
    return std::move(answer_);
  }

 private:
  void show(const std::string& text) {
    answer_.text += text;
    if (on_text_ && !text.empty() && !is_interrupted_) is_interrupted_ = !on_text_(text);
  }

  Answer answer_;
  TokenStream pieces_;
  StopTexts stops_;
  OnText on_text_;
  bool is_interrupted_ = false;
};

std::vector<std::string> Answerer::stop_texts_of(const AnswerRequest& request) const {
  std::vector<std::string> texts = settings_.stop_texts;
  texts.insert(texts.end(), request.stop_texts.begin(), request.stop_texts.end());
  return texts;
}

void Answerer::begin(AnswerRequest request, std::function<void(Answer)> on_end) {
  GenerateOptions options = request.options.value_or(settings_.options);
  options.stop_ids = settings_.options.stop_ids;
  options.stream = request.stream;
  options.max_new_tokens = check_answer_length(session_.model(), session_.program(),
                                               static_cast<int64_t>(request.prompt.size()), options.max_new_tokens);
  const auto writing = std::make_shared<Writing>(*this, request);
  const int64_t vocab_size = options.vocab_size;
  TextRequest text;
  text.cached = options.use_cache ? request.cached : nullptr;
  text.prompt = std::move(request.prompt);
  text.options = std::move(options);
  text.on_token = [writing](int32_t id) { return writing->add(id); };
  text.on_end = [this, writing, vocab_size, on_end = std::move(on_end)](const Generated& made) {
    warn_of_masked_ids(made, vocab_size);
    on_end(writing->finish(made));
  };
  texts_.add(std::move(text));
}

void Answerer::warn_of_masked_ids(const Generated& made, int64_t vocab_size) const {
  if (made.num_masked == 0 || session_.rank() != 0) return;
  counted_warning("generate.masked_ids",
                  fmt::format("for {} of {} tokens the model's most likely id was outside the tokenizer's {} ids, "
                              "and the most likely of those was taken; does the tokenizer belong to the model?",
                              made.num_masked, made.ids.size(), vocab_size),
                  made.num_masked);
}

void Answerer::step() { texts_.step(session_.executor(), session_.device()); }

Answer Answerer::answer(AnswerRequest request) {
  std::optional<Answer> made;
  begin(std::move(request), [&](Answer answer) { made = std::move(answer); });
  while (!made) step();
  return *std::move(made);
}

bool Answerer::answer_all(size_t first, size_t end, const std::function<AnswerRequest(size_t)>& request_of,
                          const std::function<void(size_t, Answer)>& on_answer, const std::function<bool()>& gives_up) {
  const auto at_once = static_cast<size_t>(*session_.settings().generate.batch_size);
  std::map<size_t, Answer> ended;  // answers that wait for those of earlier requests
  for (size_t next = first, given = first; given < end;) {
    if (gives_up && gives_up()) {
      drop_all();
      return false;
    }
    for (; next < end && num_running() < at_once; ++next)
      begin(request_of(next), [&ended, next](Answer answer) { ended[next] = std::move(answer); });
    step();
    for (auto found = ended.find(given); found != ended.end(); found = ended.find(++given)) {
      on_answer(given, std::move(found->second));
      ended.erase(found);
    }
  }
  return true;
}

}  // namespace chassis
