// Finds repeats in a rank's list that differ only in their micro-batches. A plan runs such a repeat four times and only
// counts the others, because micro-batches differ only in their data.
#pragma once

#include <cstdint>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis {

struct ShortList {
  // Entries that stand for repeats: `times` more repeats of them are left out right after them. The same entries come
  // twice before them and once after them.
  struct Repeat {
    size_t begin = 0;
    size_t num_entries = 0;
    int64_t times = 0;

    size_t end() const { return begin + num_entries; }
  };

  std::vector<Work> work;       // complete for fewer micro-batches, which are renumbered
  std::vector<Repeat> repeats;  // ascending
};

// The schedule must be proven. Returns the whole list if nothing repeats itself.
ShortList without_repeats(const Schedule& schedule, int rank);

}  // namespace chassis
