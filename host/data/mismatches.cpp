// A document that waits has the prompt of those that wait already, so one document ends the waiting of all.
#include "host/data/mismatches.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "host/base/error.hpp"
#include "host/data/data_files.hpp"
#include "host/data/units.hpp"

namespace chassis {
namespace {

constexpr const char* kWhyOthers =
    "the objective also scores each prompt with the answer to another one, to learn how far answers depend on their "
    "prompts";

// A sequence of a document.
struct Place {
  size_t begin = 0, prompt_end = 0, end = 0;
};

std::vector<Place> places_of(const Document& document) {
  std::vector<Place> places;
  size_t begin = 0;
  for (const SequenceFacts& facts : document.sequences) {
    const auto length = static_cast<size_t>(facts.length);
    const size_t prompt = prompt_length(std::span(document.labels).subspan(begin, length));
    places.push_back({begin, begin + prompt, begin + length});
    begin += length;
  }
  return places;
}

// The two answers of a row may differ in the tokens of their prompts.
bool have_one_prompt(const Document& a, const Document& b) {
  const auto prompt = [](const Document& document, const Place& place) {
    return std::span(document.ids).subspan(place.begin, place.prompt_end - place.begin);
  };
  for (const Place& of_a : places_of(a))
    for (const Place& of_b : places_of(b))
      if (std::ranges::equal(prompt(a, of_a), prompt(b, of_b))) return true;
  return false;
}

void add_mismatches(Document& document, const Document& other) {
  const std::vector<Place> own = places_of(document), others = places_of(other);
  CHASSIS_CHECK(own.size() == others.size(), "documents of a set have equally many sequences");
  for (size_t i = 0; i < own.size(); ++i) {
    SequenceFacts facts = document.sequences[i];
    facts.role = SequenceRole::kMismatch;
    facts.length = static_cast<int64_t>(own[i].prompt_end - own[i].begin + others[i].end - others[i].prompt_end);
    const auto append = [&](std::vector<int32_t>& values, const std::vector<int32_t>& from) {
      values.reserve(values.size() + static_cast<size_t>(facts.length));  // so that it may be copied from itself
      std::copy(values.begin() + static_cast<ptrdiff_t>(own[i].begin),
                values.begin() + static_cast<ptrdiff_t>(own[i].prompt_end), std::back_inserter(values));
      values.insert(values.end(), from.begin() + static_cast<ptrdiff_t>(others[i].prompt_end),
                    from.begin() + static_cast<ptrdiff_t>(others[i].end));
    };
    append(document.ids, other.ids);
    append(document.labels, other.labels);
    document.sequences.push_back(std::move(facts));
  }
}

}  // namespace

void Mismatches::add(Document&& document, size_t file) {
  CHASSIS_CHECK(!document.sequences.empty() && document.labels.size() == document.ids.size(),
                "a labelled document has sequences");
  if (!waiting_.empty() && !have_one_prompt(waiting_.front().document, document)) release(document);
  if (first_.empty() || (first_.size() == 1 && !have_one_prompt(first_.front(), document))) first_.push_back(document);
  num_waiting_tokens_ += document.ids.size();
  waiting_.push_back({std::move(document), file});
  if (num_waiting_tokens_ <= max_waiting_tokens_) return;
  throw data_set_error(config_, fmt::format("{} rows of {} that follow each other have the same prompt, and {} tokens; "
                                            "the maximum is {} tokens",
                                            waiting_.size(), config_.path, num_waiting_tokens_, max_waiting_tokens_))
      .hint(fmt::format("{}: shuffle the rows of the file", kWhyOthers));
}

void Mismatches::finish(bool is_sample) {
  if (waiting_.empty()) return;
  if (first_.size() < 2) {
    if (is_sample) {
      for (Waiting& waiting : waiting_) take_(std::move(waiting.document), waiting.file);
      waiting_.clear();
      num_waiting_tokens_ = 0;
      return;
    }
    const bool is_one = waiting_.size() == 1;
    throw data_set_error(config_, fmt::format("{} has only one prompt, in {} row{} that can be used", config_.path,
                                              waiting_.size(), is_one ? "" : "s"))
        .hint(fmt::format("{}: use rows with several prompts", kWhyOthers));
  }
  release(have_one_prompt(first_.front(), waiting_.front().document) ? first_.back() : first_.front());
}

void Mismatches::release(const Document& other) {
  for (Waiting& waiting : waiting_) {
    add_mismatches(waiting.document, other);
    take_(std::move(waiting.document), waiting.file);
  }
  waiting_.clear();
  num_waiting_tokens_ = 0;
}

}  // namespace chassis
