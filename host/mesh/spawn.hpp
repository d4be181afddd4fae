// `--nproc N`: this process starts N ranks of itself, serves their store, passes signals on and reaps them.
#pragma once

#include <string>
#include <vector>

namespace chassis {

struct SpawnOptions {
  int num_ranks = 1;
  int threads_per_rank = 0;  // 0: OMP_NUM_THREADS if the user set it, else cores ÷ ranks, at least 1
};

// Runs /proc/self/exe with `arguments` (without --nproc) as ranks 0 … N-1 by fork and exec. When one fails, the others
// learn of it through the store; those that do not end within 10 s are killed. Signals reach every rank once, and the
// ranks end when this process does. Returns the exit code of the failure that came first: 5 for a rank that was killed
// by a signal, which is told on stderr.
int run_ranks(const SpawnOptions& options, const std::vector<std::string>& arguments);

}  // namespace chassis
