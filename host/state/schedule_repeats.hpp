// Where a rank's list repeats itself with later micro-batches. A plan runs such a repeat four times and counts the
// others, because micro-batches differ in nothing but their data.
#pragma once

#include <cstdint>
#include <vector>

#include "host/state/schedule.hpp"

namespace chassis {

struct ShortList {
  // Entries that stand for more of them: `times` repeats are left out right behind them. The same entries come twice
  // before and once behind.
  struct Repeat {
    size_t begin = 0;
    size_t num_entries = 0;
    int64_t times = 0;

    size_t end() const { return begin + num_entries; }
  };

  std::vector<Work> work;       // complete for fewer micro-batches, which are numbered anew
  std::vector<Repeat> repeats;  // ascending
};

// The schedule must be proven. Returns the whole list if nothing repeats itself.
ShortList without_repeats(const Schedule& schedule, int rank);

}  // namespace chassis
