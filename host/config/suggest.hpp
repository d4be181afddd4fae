// "Did you mean …?"
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace chassis {

// Insertions, deletions, replacements and swaps of neighbours that turn a into b (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate that `word` was probably meant to be; empty if none is near. Ignores case, and takes "-" for "_".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace chassis
