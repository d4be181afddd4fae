// The threads that LibTorch computes with.
#pragma once

#include <string>

namespace chassis {

// [control] Of this process, for everything that runs in parallel; call it before the first computation.
void set_threads(int count);
int num_threads();
// What the user, or who started us, chose with OMP_NUM_THREADS; empty if nobody did.
std::string omp_num_threads();

}  // namespace chassis
