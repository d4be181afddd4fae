// Counts how the rows of a set are judged: margins, labels, classes, values and rewards. Rows that a run drops count
// too.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "host/data/data_config.hpp"
#include "host/data/record.hpp"

namespace chassis {

struct NumberRange {
  uint64_t count = 0;
  double min = 0, max = 0, sum = 0;
  void add(double number);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

struct TargetCounts {
  uint64_t num_pairs = 0;
  NumberRange margins;                              // of the pairs that have one
  uint64_t num_desirable = 0, num_undesirable = 0;  // answers
  uint64_t num_split_pairs = 0;                     // that these answers were
  uint64_t num_texts = 0;
  std::map<int64_t, uint64_t> classes;  // index → texts, if each has one class
  std::vector<NumberRange> values;      // otherwise: of each target, without those that are not given
  uint64_t num_prompts = 0;             // of rollouts
  uint64_t num_equal_rewards = 0;       // prompts whose answers all have one reward
  NumberRange rewards;

  // `has_classes`: targets are indices of classes.
  void add(const Record& record, bool has_classes);
};

// Reads all rows of the set's files that belong to its part.
TargetCounts count_targets(const DataSetConfig& set, const DataConfig& data);

}  // namespace chassis
