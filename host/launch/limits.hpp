// System requirements of a run with several ranks, checked before they meet: otherwise they would wait for each other
// in vain.
#pragma once

namespace chassis {

// Throws a config error if the clock shows a time before 1970, under which waits of libraries never end.
void require_clock();

// Raises the soft limit of this process to the hard one if the soft one is too low for `num_ranks` ranks. Throws a
// config error with both numbers if the hard one is too low as well. For the process that serves the store, to which
// every rank connects.
void require_descriptors(int num_ranks);

}  // namespace chassis
