// The patterns of ops that providers claim, such as "rms_norm+linear".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// [any] The ids of the ops, in the order in which they follow each other.
inline std::vector<std::string> ops_of_pattern(std::string_view pattern) {
  std::vector<std::string> ids(1);
  for (const char c : pattern) {
    if (c == '+')
      ids.emplace_back();
    else
      ids.back() += c;
  }
  return ids;
}

}  // namespace chassis
