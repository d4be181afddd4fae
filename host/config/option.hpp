// One key of the configuration: name, type, default, range, doc. Host keys and the options of plugins share this form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/base/json_fwd.hpp"

namespace chassis {

enum class OptionType { kBool, kInt, kFloat, kString, kStringList, kIntList, kFloatList, kTable };

// How a run that is training takes another value of a key.
enum class Change {
  kRestart,  // only when it is started again
  kSwap,     // by a swap between two steps: see host/train/live_swap.hpp
  kHot,      // at once: nothing was made from it
};
// "restart", "swap" or "hot".
const char* to_text(Change change);

struct OptionSpec {
  std::string name = {};
  OptionType type = OptionType::kString;
  std::string default_json = {};                                 // JSON text; empty: no default
  std::optional<double> min = std::nullopt, max = std::nullopt;  // for a number, and for every number in a list
  std::vector<std::string> choices = {};                         // for a string, and for every string in a list
  std::string doc = {};
  bool required = false;
  bool is_pattern = false;  // a string or list of strings: regular expressions
  bool is_path = false;     // a string or list of strings: files or folders
  bool may_be_hub = false;  // a path that may be "hub:Org/Name"
  std::optional<Change> change = std::nullopt;  // unset: that of its table
};

// "an integer", "a list of strings", …
const char* type_text(OptionType type);
// "at least 1", "between 0 and 1", empty without a range.
std::string range_text(const OptionSpec& spec);
// "\"auto\", \"cpu\" or \"cuda\"", empty without choices.
std::string choices_text(const std::vector<std::string>& choices);
// name, type, default, min, max, choices, required, doc.
Json option_json(const OptionSpec& spec);

}  // namespace chassis
