// `--nproc N`: forks N ranks, serves their store, forwards signals to them and reaps them.
#pragma once

#include <optional>

namespace chassis {

// [control] Forks ranks 0 to num_ranks - 1, so that they share what the program and its libraries have loaded; call it
// while the process has one thread and no CUDA context. In each rank it returns nullopt, and the rank continues with
// the work; standard input is empty, and the environment names rank, world size and store, as discover_launch() reads
// them. OMP_NUM_THREADS is as the user set it, otherwise each rank's share of the cores, at least 1.
// In this process it returns when all ranks have ended: the exit code of the first failure. When a rank fails, the
// others learn of it through the store; those that do not end within 10 s are killed. Every rank receives each signal
// once, and the ranks end when this process does. A rank that is killed by a signal is reported on stderr, and its exit
// code is 5.
std::optional<int> run_ranks(int num_ranks);

}  // namespace chassis
