// Where the texts of two ranks differ, for messages.
#pragma once

#include <string>

namespace chassis {

// Of two texts with one line per thing, "KEY = VALUE" or "KEY VALUE": the first thing that they have otherwise, or that
// only one of them has, as "'lr = 2' on rank 1, 'lr = 1' on rank 0", with the number of further ones. Lines are
// compared by their keys, so that a line of one text alone does not shift the others.
std::string text_difference(const std::string& theirs, int their_rank, const std::string& ours, int our_rank);

}  // namespace chassis
