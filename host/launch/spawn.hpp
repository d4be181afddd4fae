// `--nproc N`: this process starts N ranks of itself, serves their store, passes signals on and reaps them.
#pragma once

#include <string>
#include <vector>

namespace chassis {

// [control] Runs /proc/self/exe with `arguments` (without --nproc) as ranks 0 to num_ranks - 1 by fork and exec, each
// with OMP_NUM_THREADS as the user set it, else its share of the cores, at least 1. When one fails, the others learn of
// it through the store; those that do not end within 10 s are killed. Signals reach every rank once, and the ranks end
// when this process does. Returns the exit code of the failure that came first: 5 for a rank that was killed by a
// signal, which is told on stderr.
int run_ranks(int num_ranks, const std::vector<std::string>& arguments);

}  // namespace chassis
