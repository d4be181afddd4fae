// What several ranks need of the system, checked before they meet: without it they would wait for each other in vain.
#pragma once

namespace chassis {

// Throws a config error if the clock shows a time before 1970, under which waits of libraries never end.
void require_clock();

// Raises the soft limit of this process to the hard one where that is too low for `num_ranks` ranks. Throws a config
// error with both numbers if the hard one is, too. For the process that serves the store, to which every rank connects.
void require_descriptors(int num_ranks);

}  // namespace chassis
