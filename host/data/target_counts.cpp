// Rows are parsed, and not encoded.
#include "host/data/target_counts.hpp"

#include <algorithm>
#include <cmath>
#include <variant>

#include "host/data/data_files.hpp"
#include "host/data/record_hash.hpp"
#include "host/data/record_reader.hpp"

namespace chassis {

void NumberRange::add(double number) {
  min = count == 0 ? number : std::min(min, number);
  max = count == 0 ? number : std::max(max, number);
  sum += number;
  ++count;
}

void TargetCounts::add(const Record& record, bool has_classes) {
  if (const auto* pair = std::get_if<PreferenceRecord>(&record)) {
    if (pair->is_split) {
      ++num_split_pairs, ++num_desirable, ++num_undesirable;
      return;
    }
    ++num_pairs;
    if (pair->margin) margins.add(*pair->margin);
  } else if (const auto* labelled = std::get_if<LabelledRecord>(&record)) {
    ++(labelled->is_good ? num_desirable : num_undesirable);
  } else if (const auto* classified = std::get_if<ClassifiedRecord>(&record)) {
    ++num_texts;
    if (has_classes && classified->targets.size() == 1) {
      ++classes[static_cast<int64_t>(classified->targets.front())];
      return;
    }
    values.resize(std::max(values.size(), classified->targets.size()));
    for (size_t i = 0; i < classified->targets.size(); ++i)
      if (!std::isnan(classified->targets[i])) values[i].add(classified->targets[i]);
  } else if (const auto* rollouts = std::get_if<RolloutsRecord>(&record)) {
    ++num_prompts;
    const double first = rollouts->rollouts.front().reward;
    num_equal_rewards +=
        std::ranges::all_of(rollouts->rollouts, [&](const auto& rollout) { return rollout.reward == first; });
    for (const RolloutsRecord::Rollout& rollout : rollouts->rollouts) rewards.add(rollout.reward);
  }
}

TargetCounts count_targets(const DataSetConfig& set, const DataConfig& data) {
  const bool is_whole = set.part_begin <= 0 && set.part_end >= 1;
  const bool has_classes = data.sequences && data.sequences->num_classes > 0;
  TargetCounts counts;
  const auto parser = make_row_parser(set, data.vocab_size);
  for (const std::string& file : data_files(set)) {
    const auto rows = open_rows(file, set);
    for (RawRow raw; rows->next(raw);) {
      const Record record = parser->parse(raw, file);
      const double fraction = is_whole ? 0 : content_fraction(record);
      if (is_whole || (fraction >= set.part_begin && fraction < set.part_end)) counts.add(record, has_classes);
    }
  }
  return counts;
}

}  // namespace chassis
