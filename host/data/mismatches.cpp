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

std::span<const int32_t> prompt_of(const Document& document) {
  return std::span(document.ids).first(prompt_length(document.labels));
}

bool have_one_prompt(const Document& a, const Document& b) { return std::ranges::equal(prompt_of(a), prompt_of(b)); }

void add_mismatch(Document& document, const Document& other) {
  const auto own = static_cast<ptrdiff_t>(prompt_of(document).size()),
             answer = static_cast<ptrdiff_t>(prompt_of(other).size());
  SequenceFacts facts = document.sequences.front();
  facts.role = SequenceRole::kMismatch;
  facts.length = own + static_cast<int64_t>(other.ids.size()) - answer;
  const auto append = [&](std::vector<int32_t>& values, const std::vector<int32_t>& others) {
    values.reserve(values.size() + static_cast<size_t>(facts.length));  // so that it may be copied from itself
    std::copy_n(values.begin(), own, std::back_inserter(values));
    values.insert(values.end(), others.begin() + answer, others.end());
  };
  append(document.ids, other.ids);
  append(document.labels, other.labels);
  document.sequences.push_back(std::move(facts));
}

}  // namespace

void Mismatches::add(Document&& document, size_t file) {
  CHASSIS_CHECK(document.sequences.size() == 1 && document.labels.size() == document.ids.size(),
                "a labelled document has one sequence");
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

void Mismatches::finish() {
  if (waiting_.empty()) return;
  if (first_.size() < 2) {
    const bool is_one = waiting_.size() == 1;
    throw data_set_error(config_, fmt::format("{} has only one prompt, in {} row{} that can be used", config_.path,
                                              waiting_.size(), is_one ? "" : "s"))
        .hint(fmt::format("{}: use rows with several prompts", kWhyOthers));
  }
  release(have_one_prompt(first_.front(), waiting_.front().document) ? first_.back() : first_.front());
}

void Mismatches::release(const Document& other) {
  for (Waiting& waiting : waiting_) {
    add_mismatch(waiting.document, other);
    take_(std::move(waiting.document), waiting.file);
  }
  waiting_.clear();
  num_waiting_tokens_ = 0;
}

}  // namespace chassis
