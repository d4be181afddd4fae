// The tokens of a unit are those of its sequences, one after the other.
#include "host/data/units.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace chassis {

size_t prompt_length(std::span<const int32_t> labels) {
  const auto first = std::ranges::find_if(labels, [](int32_t label) { return label != kIgnoreLabel; });
  return static_cast<size_t>(first - labels.begin());
}

bool cut_prompts(Document& unit, size_t limit) {
  if (unit.ids.size() <= limit) return true;
  const size_t num_sequences = unit.sequences.size();
  const size_t num_cut = (unit.ids.size() - limit + num_sequences - 1) / num_sequences;
  size_t begin = 0;
  for (const SequenceFacts& facts : unit.sequences) {
    const auto length = static_cast<size_t>(facts.length);
    if (num_cut >= prompt_length(std::span(unit.labels).subspan(begin, length))) return false;
    begin += length;
  }
  for (std::vector<int32_t>* values : {&unit.ids, &unit.labels}) {
    auto out = values->begin();
    size_t from = 0;
    for (const SequenceFacts& facts : unit.sequences) {
      const size_t end = from + static_cast<size_t>(facts.length);
      out = std::copy(values->begin() + static_cast<ptrdiff_t>(from + num_cut),
                      values->begin() + static_cast<ptrdiff_t>(end), out);
      from = end;
    }
    values->erase(out, values->end());
  }
  for (SequenceFacts& facts : unit.sequences) facts.length -= static_cast<int64_t>(num_cut);
  return true;
}

std::vector<Document> split_answers(Document&& document) {
  std::vector<Document> units;
  const auto num_mismatches =
      static_cast<size_t>(std::ranges::count(document.sequences, SequenceRole::kMismatch, &SequenceFacts::role));
  const size_t num_answers = document.sequences.size() - num_mismatches;
  if (num_answers <= 1) {
    units.push_back(std::move(document));
    return units;
  }
  units.resize(num_answers);
  for (Document& unit : units) {
    unit.line = document.line;
    unit.columns = document.columns;
  }
  size_t begin = 0;
  for (size_t i = 0; i < document.sequences.size(); ++i) {
    Document& unit = units[i % num_answers];
    const auto length = static_cast<size_t>(document.sequences[i].length);
    const auto append = [&](std::vector<int32_t>& values, const std::vector<int32_t>& from) {
      std::ranges::copy(std::span(from).subspan(begin, length), std::back_inserter(values));
    };
    append(unit.ids, document.ids);
    append(unit.labels, document.labels);
    unit.sequences.push_back(std::move(document.sequences[i]));
    begin += length;
  }
  return units;
}

}  // namespace chassis
