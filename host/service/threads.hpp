// The number of threads that LibTorch computes with.
#pragma once

#include <string>

namespace chassis {

// [control] Sets it for the process. Call it before the first computation.
void set_threads(int count);
int num_threads();
// The environment variable OMP_NUM_THREADS; empty if it is not set.
std::string omp_num_threads();

}  // namespace chassis
