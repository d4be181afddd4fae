// Keys of other trainers, and the answers to users who write them.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace chassis {

struct ForeignKey {
  std::string_view key;      // "cutoff_len", or dotted: "zero_optimization.stage"
  std::string_view trainer;  // the one from which users know the key
  std::string_view answer;   // a sentence without a full stop
};

std::span<const ForeignKey> foreign_keys();

// Searches by the whole dotted key, then by its last two parts, then by its last part; NULL if none is a known key.
const ForeignKey* find_foreign_key(std::string_view dotted_key);
// The choice that a word of other trainers stands for: "cuda" for "gpu"; empty for any other word.
std::string_view foreign_choice(std::string_view word);
// The optimizer that a name of other trainers stands for: "adamw8bit" for "adamw_bnb_8bit"; empty for any other word.
std::string_view foreign_optimizer(std::string_view word);
// The keys of [objective] for a method of other trainers that is no plugin here: "simpo"; empty for any other word.
std::string_view foreign_objective(std::string_view word);
// The answer for a method of other trainers that a key does not take: "dpo" of train.task; empty for any other word.
std::string_view foreign_method(std::string_view dotted_key, std::string_view word);
// True if a known key begins with "prefix.", as those of [zero_optimization] do.
bool is_foreign_table(std::string_view prefix);

}  // namespace chassis
