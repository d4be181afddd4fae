// The tokens of a unit are those of its sequences, one after the other.
#include "host/data/units.hpp"

#include <algorithm>

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

}  // namespace chassis
