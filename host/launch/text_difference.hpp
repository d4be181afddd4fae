// Finds the first difference between the texts of two ranks, for messages.
#pragma once

#include <string>

namespace chassis {

// Compares two texts with one item per line, "KEY = VALUE" or "KEY VALUE". Returns the first item that differs, or that
// only one of them has, as "'lr = 2' on rank 1, 'lr = 1' on rank 0", with the number of further ones. Lines are matched
// by their keys, so that a line that only one text has does not shift the others.
std::string text_difference(const std::string& theirs, int their_rank, const std::string& ours, int our_rank);

}  // namespace chassis
