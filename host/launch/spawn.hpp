// `--nproc N`: starts N ranks of this program, serves their store, forwards signals to them and reaps them.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// [control] Runs /proc/self/exe with `arguments` (without --nproc) as ranks 0 to num_ranks - 1 by fork and exec.
// OMP_NUM_THREADS is as the user set it, otherwise each rank's share of the cores, at least 1. When a rank fails, the
// others learn of it through the store; those that do not end within 10 s are killed. Every rank receives each signal
// once, and the ranks end when this process does. Returns the exit code of the first failure. A rank that is killed by
// a signal is reported on stderr, and its exit code is 5.
int run_ranks(int num_ranks, const std::vector<std::string>& arguments);

}  // namespace chassis
