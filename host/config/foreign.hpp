// Keys of other trainers, and what we say to people who bring them along.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace chassis {

struct ForeignKey {
  std::string_view key;      // "cutoff_len", or dotted: "zero_optimization.stage"
  std::string_view trainer;  // where people know it from
  std::string_view answer;   // a sentence without a full stop
};

std::span<const ForeignKey> foreign_keys();

// By the whole dotted key, by its last two parts, or by its last; nullptr if no trainer is known to have it.
const ForeignKey* find_foreign_key(std::string_view dotted_key);
// True if "prefix." begins a known key: [zero_optimization].
bool is_foreign_table(std::string_view prefix);

}  // namespace chassis
